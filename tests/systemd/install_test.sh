#!/usr/bin/env bash
# Installs into a temporary prefix and checks what is there: every program runs, the units are what
# systemd wants and hardened, the configuration is one that elixird takes.
#
#   install_test.sh BUILD_FOLDER PROGRAM...
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/checks.sh"
build=$1
shift
programs=("$@")
MAX_EXPOSURE=1.0  # of systemd 252: the system's units have 0.6, the user's 0.9
folder=$(mktemp -d /tmp/elixir-install-XXXXXX)
daemon=''
trap '[[ -z $daemon ]] || kill -KILL "$daemon" 2>/dev/null; rm -rf "$folder"' EXIT
prefix=$folder/prefix

cmake --install "$build" --prefix "$prefix" >"$folder/install.log" 2>&1
check "cmake --install" test $? -eq 0
tail -3 "$folder/install.log"

for program in "${programs[@]}"; do
  output=$("$prefix/bin/$program" --version 2>&1)
  check "$program --version: $output" test $? -eq 0
done
for file in lib/systemd/system/elixird.service lib/systemd/system/elixird@.service \
  lib/systemd/user/elixird.service etc/elixir/elixird.toml; do
  check "$file" test -s "$prefix/$file"
done

# Units: silent verification, no name left open, little exposure.
system=$prefix/lib/systemd/system
output=$(systemd-analyze verify "$system/elixird.service" "$system/elixird@.service" 2>&1)
check "systemd-analyze verify is silent: $output" test $? -eq 0 -a -z "$output"
user=$prefix/lib/systemd/user
user_unit_is_silent() {  # user_unit_is_silent FOLDER
  local output
  output=$(XDG_RUNTIME_DIR=$folder systemd-analyze --user verify "$1/elixird.service" 2>&1)
  [[ $? -eq 0 && -z $output ]] || { echo "$output"; return 1; }
}
check "systemd-analyze --user verify is silent" user_unit_is_silent "$user"
output=$(grep -rE '@[A-Z_]+@' "$prefix/lib" "$prefix/etc")
check "no placeholder is left: $output" test -z "$output"
for unit in "$system"/elixird*.service "$user/elixird.service"; do
  exposure=$(systemd-analyze security --offline=yes --no-pager "$unit" 2>/dev/null |
    sed -n 's/.*Overall exposure level.*: \([0-9.]*\).*/\1/p')
  check "exposure of ${unit#"$prefix/"}: $exposure, at most $MAX_EXPOSURE" \
    awk -v had="$exposure" -v most="$MAX_EXPOSURE" 'BEGIN { exit !(had != "" && had + 0 <= most) }'
done

# Without users' namespaces no capability can be taken away: the drop-in undoes all that would.
mkdir -p "$folder/without/elixird.service.d"
cp "$user/elixird.service" "$folder/without"
cp "$prefix"/share/doc/elixir/without_user_namespaces.conf "$folder/without/elixird.service.d"
check "so is it without users' namespaces" user_unit_is_silent "$folder/without"
takes_away=$(sed -nE 's/^(PrivateUsers|CapabilityBoundingSet|PrivateDevices|Protect(Clock|Kernel(Modules|Logs)))=.*/\1/p' \
  "$user/elixird.service" | sort)
undone=$(sed -nE 's/^([A-Za-z]+)=(no|~)$/\1/p' "$folder"/without/*/*.conf | sort)
check "where $(wc -l <<<"$undone") directives are undone" test "$takes_away" = "$undone"

# No unit lets the system swap states out, or hides that from elixird (mincore).
for unit in "$system"/elixird*.service "$user/elixird.service"; do
  check "$(basename "$unit") swaps nothing out" grep -qx 'MemorySwapMax=0' "$unit"
  check "and may ask what is in memory" grep -q '^SystemCallFilter=.*\bmincore\b' "$unit"
done

# The configuration: as it is, and with every line in force.
starts_with() {  # starts_with CONFIG: elixird comes up with it and ends well
  local run
  run=$(mktemp -d "$folder/run-XXXX")
  "$prefix/bin/elixird" --runtime-dir "$run" --config "$1" >"$folder/elixird.log" 2>&1 &
  daemon=$!
  local tries=0
  until [[ -S $run/attach.sock ]] || ! kill -0 "$daemon" 2>/dev/null || ((++tries > 600)); do sleep 0.1; done
  kill -TERM "$daemon" 2>/dev/null
  wait "$daemon"
  local code=$?
  daemon=''
  [[ $code -eq 0 ]] || { tail -3 "$folder/elixird.log"; return 1; }
}
config=$prefix/etc/elixir/elixird.toml
check "elixird starts with the installed configuration" starts_with "$config"
sed 's/^# \([a-z_]* = \)/\1/' "$config" >"$folder/all.toml"
check "which names $(grep -c '^[a-z_]* = ' "$folder/all.toml") limits" \
  test "$(grep -c '^[a-z_]* = ' "$folder/all.toml")" -ge 8
check "and with every line of it in force" starts_with "$folder/all.toml"
echo 'wrokers = 2' >"$folder/wrong.toml"  # the control: it is read
output=$("$prefix/bin/elixird" --runtime-dir "$folder/run" --config "$folder/wrong.toml" 2>&1)
check "an unknown key is refused: $output" test $? -eq 2

exit $((failures > 0))
