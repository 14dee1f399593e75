#!/usr/bin/env bash
# scripts/setup.sh and scripts/build.sh: what is done costs nothing, what cannot be done is said.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/checks.sh"
folder=$(mktemp -d /tmp/elixir-setup-XXXXXX)
trap 'rm -rf "$folder"' EXIT

# 1. Done already: under a second (the best of three, should the machine be busy).
if "$repository/scripts/setup.sh" --check; then
  best_ms=100000
  for _ in 1 2 3; do
    start_ns=$(date +%s%N)
    "$repository/scripts/setup.sh" || best_ms=-1
    took_ms=$((($(date +%s%N) - start_ns) / 1000000))
    ((took_ms < best_ms)) && best_ms=$took_ms
  done
  check "a set-up that is done takes $best_ms ms" test "$best_ms" -ge 0 -a "$best_ms" -lt 1000
else
  check "set-up is complete on a machine that built this test" false
fi

# 2. A package is missing, and nobody is root: the command to run is printed, nothing is written.
# The copy of the tree has no .venv; dpkg-query has never heard of one package, so it fails, as on
# a fresh machine; sudo asks for a password.
mkdir -p "$folder/tree" "$folder/bin"
cp -r "$repository/scripts" "$folder/tree/"
cat >"$folder/bin/dpkg-query" <<'FAKE'
#!/bin/sh
/usr/bin/dpkg-query "$@" | grep -v libxxhash-dev
exit 1
FAKE
printf '#!/bin/sh\nexit 1\n' >"$folder/bin/sudo"
printf '#!/bin/sh\ntouch "$(dirname "$0")/apt-was-called"\n' >"$folder/bin/apt-get"
chmod -R a+rX "$folder"
chmod 0755 "$folder/bin/"*
as_nobody=()
[[ $(id -u) -eq 0 ]] && as_nobody=(setpriv --reuid 65534 --clear-groups)
output=$(PATH="$folder/bin:$PATH" "${as_nobody[@]}" "$folder/tree/scripts/setup.sh" 2>&1 </dev/null)
check "it fails" test $? -eq 1
check "it prints the command" contains "$output" \
  "apt-get update && apt-get install --no-install-recommends -y libxxhash-dev"
check "it installs nothing" test ! -e "$folder/bin/apt-was-called"

# 3. What is missing can be listed.
output=$(PATH="$folder/bin:$PATH" "$folder/tree/scripts/setup.sh" --check)
check "--check fails" test $? -eq 1
check "--check names the package" contains "$output" "libxxhash-dev"
check "--check names torch" contains "$output" "torch"

# 4. The packages alone: neither torch nor a compiler is missed, and .venv is not made.
output=$(PATH="$folder/bin:$PATH" "${as_nobody[@]}" "$folder/tree/scripts/setup.sh" --packages 2>&1 </dev/null)
check "--packages fails where one is missing" test $? -eq 1
check "it prints the command" contains "$output" "apt-get install --no-install-recommends -y libxxhash-dev"
output=$("$folder/tree/scripts/setup.sh" --packages 2>&1)
check "--packages is done where none is missing" test $? -eq 0 -a -z "$output" -a ! -e "$folder/tree/.venv"

# 5. Wrong arguments.
output=$("$repository/scripts/build.sh" relaese 2>&1)
check "an unknown preset fails" test $? -eq 2
check "and the known ones are named" contains "$output" "release, debug, asan, tsan"
"$repository/scripts/setup.sh" --nonsense >/dev/null 2>&1
check "an unknown argument fails" test $? -eq 1

# 6. Another torch beside .venv's.
for torch in "" 2.15 newer ../2.15.0; do
  output=$("$repository/scripts/setup.sh" --torch "$torch" --check 2>&1)
  check "--torch '$torch' is refused" test $? -eq 1
  check "with an example" contains "$output" "a release of torch, such as 2."
done
output=$("$folder/tree/scripts/setup.sh" --torch newest --check)
check "--check names it" matches "$output" "^missing: torch 2\.[0-9]+\.[0-9]+ in build/torch-2\."
own=$(sed -n 's/^TORCH_VERSION=\([0-9.]*\).*/\1/p' "$repository/scripts/setup.sh")
check ".venv's own is no other one" test \
  "$("$folder/tree/scripts/setup.sh" --torch "$own" --check | grep -c "$own in build/torch-")" -eq 0
output=$("$repository/scripts/build.sh" tsan --torch newest 2>&1)
check "a preset without LibTorch takes none" test $? -eq 2
check "and says so" contains "$output" "tsan links no LibTorch"
mkdir "$folder/empty"
output=$("$repository/scripts/build.sh" --torch "$folder/empty" 2>&1)
check "a folder without torch is refused" test $? -eq 2
check "with what is meant" contains "$output" ".../site-packages/torch"

exit $((failures > 0))
