"""Widgets draw the values they are given. They know no session, have no clock and do no IO."""
