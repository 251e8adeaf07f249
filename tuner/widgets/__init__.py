"""What is drawn. Widgets take values and draw them; they know no session, own no clock and do no IO."""
