#!/usr/bin/env bash
# scripts/gpu_check.sh with what a build made: packed, unpacked elsewhere, and the whole first call run in
# the smallest sizes over the fake CUDA runtime, where neither the checkout, nor the build, nor the
# libraries that were packed can be found any more, and torch lies in another folder.
#
#   gpu_check_pack_test.sh BUILD
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/checks.sh"
SKIPPED=77

fail() { echo "FAILED: $*"; exit 1; }

# Within a mount namespace of its own: FOLDER SITE NAMESPACE-OF-THE-CALLER.
hide_and_run() {
  local folder=$1 site=$2 file
  [[ "$(readlink /proc/self/ns/mnt)" != "$3" ]] || exit $SKIPPED
  mount --bind "$site" "$folder/elsewhere" || exit $SKIPPED
  mount -t tmpfs none "$site" && mount -t tmpfs none "$repository" || exit $SKIPPED
  for file in "$folder"/packed/lib/*.so.*; do
    file=$(ldconfig -p | sed -n "s,^\s*${file##*/} .* => ,,p" | head -n 1)
    [[ -z $file ]] || mount --bind /dev/null "$file" || exit $SKIPPED
  done
  [[ ! -e $repository/README.md && ! -e $site/torch ]] || fail "the checkout is not hidden"
  export PYTHONPATH=$folder/elsewhere ELIXIR_FAKE_CUDA_LIB=$folder/fake/lib
  local call=("$folder/packed/scripts/gpu_check.sh" run 1 --tiny)
  cd / || exit
  python3 -B "$folder/fake/run.py" "${call[@]}" "$folder/results"
  # Little may be page-locked: that must be found.
  python3 -B "$folder/fake/run.py" PIN_LIMIT_MIB=1 "${call[@]}" --only '^(train_small|link)$' "$folder/unlocked"
}
if [[ ${1:-} == --elsewhere ]]; then
  shift
  hide_and_run "$@"
  exit
fi
BUILD=${1:?BUILD}
folder=$(mktemp -d /tmp/elixir-gpu-pack-XXXXXX)
trap 'rm -rf "$folder"' EXIT

# 1. Packed: small, and bound to no folder of this machine.
"$repository/scripts/gpu_check.sh" pack --build "$BUILD" "$folder/gpu_check.tar.gz" || fail "it does not pack"
mkdir "$folder/packed" "$folder/elsewhere" && tar -C "$folder/packed" -xzf "$folder/gpu_check.tar.gz"
mapfile -t programs < <(find "$folder/packed" -type f \( -path '*/bin/*' -o -name '*_test' -o -name '*.so*' \))
check "programs and libraries are there" test ${#programs[@]} -gt 15
check "no program has a run path" test "$(readelf -d "${programs[@]}" | grep -cE 'R(UN)?PATH')" -eq 0
check "none has debug information" test "$(readelf -S "${programs[@]}" | grep -c debug_info)" -eq 0
check "the manifest names the torch" matches "$(cat "$folder/packed/manifest.txt")" '^torch 2\.[0-9]+\.[0-9]+'

check "the end-to-end test has what it imports" env PYTHONPATH="$folder/packed/tests/e2e" ELIXIR_BIN_DIR=/nowhere \
  python3 -B -c 'import gpu_test'
check "and so has the peers' comparison" grep -q -- --budget <(python3 -B "$folder/packed/bench/peers.py" --help)

# 2. Elsewhere.
site=$(realpath "$(sed -n 's/^LIBTORCH_ROOT:[A-Z]*=//p' "$BUILD/CMakeCache.txt")/..")
mkdir "$folder/fake"
cp -r "$BUILD/tests/fake_cuda/lib" "$repository/tests/fake_cuda/run.py" "$folder/fake/" || fail "no fake CUDA runtime"
unset PYTHON CUDA_VISIBLE_DEVICES
namespace=(unshare --mount --propagation private)
[[ $(id -u) -eq 0 ]] || namespace+=(--user --map-root-user)
"${namespace[@]}" "${BASH_SOURCE[0]}" --elsewhere "$folder" "$site" "$(readlink /proc/self/ns/mnt)"
code=$?
((code != SKIPPED)) || { echo "skipped: no mount namespace can be made here"; exit $SKIPPED; }

# 3. What came of it. Kernels other than Elixir's compute nothing here, so training's numbers are no
# model's, and tests that look at them may fail; that they ran is all that is asked of them.
cat "$folder/results/summary.md"
summary=$(cat "$folder/results/summary.txt")
for stage in environment touch_memory doctor train_small train_small_half train_small_gpu link; do
  check "$stage" matches "$summary" "^ok +[0-9]+ s  $stage\$"
done
check "the tests ran" test "$(grep -c '^\[=*\] Running [0-9]* test' "$folder/results/LastTest.log")" -eq 3
check "everything was found" test "$(grep -cE 'cannot open shared object|No such file' "$folder/results/output.log")" -eq 0
check "torch was the other folder's" matches "$(cat "$folder/results/doctor.json")" "$folder/elsewhere/torch\""
check "figures of three trainings" test "$(grep -c '^| train_small.* `train_gpt2 ' "$folder/results/summary.md")" -eq 3
for stage in train_small link; do
  check "$stage fails without page-locked memory" matches "$(cat "$folder/unlocked/summary.txt")" \
    "^failed +[0-9]+ s  $stage: exit code 1\$"
done
exit $((failures > 0))
