# shellcheck shell=bash
# scripts/gpu_check.sh pack: what the calls need, stripped, in one file.

# The most that may travel, compressed, and the newest C library that may be needed there.
MOST_MB=40
MOST_GLIBC=2.34
# Of the machine with the GPU, for wheels with compiled code.
GPU_PYTHON=3.12
WHEELS=$HERE/build/gpu_wheels
# What DeepSpeed imports, but for torch and numpy.
WHEELS_OF_DEEPSPEED=(einops hjson msgpack ninja packaging psutil py-cpuinfo pydantic tqdm)
TEXT_BYTES=1000000  # to train on

PROGRAMS=(
  bin/train_gpt2 bin/elixir-train bin/elixird bin/elixir-run bin/elixirctl bin/elixir-probe bin/elixir-profile
  lib/torch211/libelixir_cuda.so
  tests/kernels_gpu_test tests/client_cuda_gpu_test tests/client_gpu_training_test tests/foreign_steps
  bench/kernels bench/link bench/interception bench/adam
)
TARGETS=(
  train_gpt2 elixir-train elixird elixir-run elixirctl elixir-probe elixir-profile elixir_cuda
  kernels_gpu_test client_cuda_gpu_test client_gpu_training_test foreign_steps
  bench_kernels bench_link bench_interception bench_adam
)
SCRIPTS=(
  scripts/gpu_check.sh scripts/gpu_check bench/peers.py bench/peer_processes.py bench/peer_rank.py
  tests/e2e/gpu_test.py tests/e2e/harness.py tests/e2e/memory_group.py
  tests/e2e/foreign_test.py tests/e2e/foreign_losses_test.py
)
# The system there brings these, or the driver does.
HOST_LIBRARIES='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libutil|libstdc\+\+|libgcc_s|libcuda)\.so'

say_contents() {
  local file
  echo "packed, stripped, at most $MOST_MB MB:"
  printf '  %s\n' "${PROGRAMS[@]}" "lib/: shared libraries that these load and torch does not bring"
  for file in "${SCRIPTS[@]}"; do [[ -e $HERE/$file ]] && echo "  $file"; done
  echo "  data/text.txt, manifest.txt"
  if compgen -G "$WHEELS/*.whl" >/dev/null; then
    (cd "$WHEELS" && printf '  wheels/%s\n' *.whl)
  else
    echo "  wheels/: none here; scripts/gpu_check.sh wheels collects DeepSpeed's"
  fi
}

# DeepSpeed without anything compiled, and what it imports that a Python with torch may lack. The
# machine there compiles its CPU Adam, once.
collect_wheels() {
  local python=$HERE/build/peers_venv/bin/python version
  version=$(sed -n 's/^DEEPSPEED_VERSION=//p' "$HERE/scripts/peers_setup.sh")
  [[ -x $python && -n $version ]] || fail "there is no build/peers_venv to make them with; run scripts/peers_setup.sh first"
  mkdir -p "$WHEELS" && rm -f "$WHEELS"/*.whl
  local pip=("$python" -m pip --quiet --disable-pip-version-check)
  DS_BUILD_OPS=0 DS_ACCELERATOR=cpu "${pip[@]}" wheel --no-deps --no-build-isolation --wheel-dir "$WHEELS" \
    "deepspeed==$version" >&2 &&
    "${pip[@]}" download --dest "$WHEELS" --only-binary=:all: --implementation cp \
      --python-version "$GPU_PYTHON" --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
      "${WHEELS_OF_DEEPSPEED[@]}" >&2 ||
    fail "pip could not collect the wheels: is there a network? Without them call 3 leaves DeepSpeed out"
  echo "gpu_check: $WHEELS holds $(cd "$WHEELS" && echo *.whl)"
}

# Libraries that the programs load and that neither torch's wheels nor the system there bring.
copy_loaded() {
  local site file arrow path _
  site=$(realpath "$1/..")
  while read -r file arrow path _; do
    [[ $arrow == "=>" && ! $file =~ $HOST_LIBRARIES && ! -e $TREE/lib/$file ]] || continue
    [[ $path == /* ]] || fail "$file is loaded and not found here; scripts/setup.sh installs what is missing"
    [[ $(realpath "$path") == "$site"/* || $path == "$BUILD"/* ]] || cp -L "$path" "$TREE/lib/$file"
  done < <(cd "$BUILD" && ldd "${PROGRAMS[@]}" 2>&1)
}

# Nothing in a program says where this machine keeps its libraries: LD_LIBRARY_PATH does there.
forget_run_paths() {
  local file
  for file in "${PROGRAMS[@]}"; do echo "file(RPATH_REMOVE FILE \"$TREE/$file\")"; done >"$TREE/forget.cmake"
  cmake -P "$TREE/forget.cmake" || fail "cmake could not take the run paths out of the programs"
  rm "$TREE/forget.cmake"
}

# The newest symbol version VERSIONS_x.y that anything in the tree needs.
newest_symbol() {
  find "$TREE/bin" "$TREE/lib" "$TREE/tests" "$TREE/bench" -type f ! -name '*.py' -exec objdump -T {} + 2>/dev/null |
    grep -oE "\(?$1_[0-9.]+" | grep -oE '[0-9.]+$' | sort -Vu | tail -n 1
}

write_manifest() {
  local glibc
  glibc=$(newest_symbol GLIBC)
  [[ $(printf '%s\n' "$glibc" "$MOST_GLIBC" | sort -V | tail -n 1) == "$MOST_GLIBC" ]] ||
    fail "what was built needs glibc $glibc, newer than the $MOST_GLIBC that a machine with a GPU may have"
  {
    echo "$("$BUILD/bin/elixird" --version) $(git -C "$HERE" describe --always --dirty 2>/dev/null)"
    echo "torch $(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$1/version.py")"
    echo "glibc $glibc"
    echo "glibcxx $(newest_symbol GLIBCXX)"
    (cd "$TREE" && find . -type f ! -name manifest.txt -printf 'file %P %s\n' | sort)
  } >"$TREE/manifest.txt"
}

# The same text everywhere: Elixir's own.
write_text() {
  mkdir "$TREE/data"
  find "$HERE" \( -name build -o -name .git -o -name .venv \) -prune -o \
    \( -name '*.h' -o -name '*.cpp' -o -name '*.md' \) -type f -print0 |
    sort -z | xargs -0 cat 2>/dev/null | head -c "$TEXT_BYTES" >"$TREE/data/text.txt"
}

fill_tree() {
  local file torch
  torch=$(sed -n 's/^LIBTORCH_ROOT:[A-Z]*=//p' "$BUILD/CMakeCache.txt")
  [[ -n $torch ]] || fail "$BUILD was configured without LibTorch"
  mkdir -p "$TREE"/{bin,lib/torch211,tests/e2e,bench,scripts,wheels}
  for file in "${PROGRAMS[@]}"; do
    [[ -f $BUILD/$file ]] || fail "there is no $BUILD/$file; scripts/setup.sh installs CUDA's compiler, then scripts/build.sh"
    strip --strip-unneeded -o "$TREE/$file" "$BUILD/$file" || fail "strip failed"
  done
  forget_run_paths
  copy_loaded "$torch"
  for file in "${SCRIPTS[@]}"; do
    if [[ -e $HERE/$file ]]; then cp -r "$HERE/$file" "$TREE/$file"; fi
  done
  if compgen -G "$WHEELS/*.whl" >/dev/null; then cp "$WHEELS"/*.whl "$TREE/wheels/"; fi
  write_text
  write_manifest "$torch"
}

pack() {
  local archive=$1 kb
  if [[ -z $BUILD ]]; then
    BUILD=$HERE/build/release
    "$HERE/scripts/build.sh" release -- "${TARGETS[@]}" || exit 1
  fi
  TREE=$(mktemp -d)
  trap 'rm -rf "$TREE"' EXIT
  chmod 755 "$TREE"
  fill_tree
  mkdir -p "$(dirname "$archive")"
  tar --owner=0 --group=0 --sort=name -C "$TREE" -czf "$archive" . || fail "cannot write $archive"
  kb=$(du -sk --apparent-size "$archive" | cut -f1)
  echo "gpu_check: $archive, $((kb / 1000)).$((kb % 1000 / 100)) MB," \
    "$(grep -c '^file ' "$TREE/manifest.txt") files; needs glibc $(sed -n 's/^glibc //p' "$TREE/manifest.txt")," \
    "torch $(sed -n 's/^torch //p' "$TREE/manifest.txt")"
  ((kb < MOST_MB * 1000)) || fail "that is more than the $MOST_MB MB that may travel"
}
