#!/usr/bin/env bash
# The Debian packages that Elixir is built with, as one file for a GPU host that lacks them and has
# no network: headers, libraries with what they load, pkg-config. LibTorch, nvcc, CMake, ninja and a
# C++ compiler are the host's own.
#
#   scripts/gpu_host_deps.sh                 here, set up: collects into build/gpu_host_deps
#   scripts/gpu_host_deps.sh unpack PREFIX   there: makes PREFIX of it, and PREFIX/initial_cache.cmake
#
# On the host:  cmake -C PREFIX/initial_cache.cmake ...
# The host's C library must be as new as that of the machine that collected.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

FOLDER=${ELIXIR_GPU_HOST_DEPS:-build/gpu_host_deps}
LIMIT_MB=40
PACKAGES=(
  libzmq3-dev libzmq5 cppzmq-dev libnuma-dev libnuma1 libfmt-dev libfmt9 libspdlog-dev libspdlog1.10
  libcli11-dev nlohmann-json3-dev libtomlplusplus-dev libtomlplusplus3 libxxhash-dev libxxhash0
  libgtest-dev libgmock-dev libbenchmark-dev libbenchmark1debian libgloo-dev
)
# The host's compiler and C library bring these.
HOST_LIBRARIES='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s)\.so'

fail() { echo "gpu_host_deps: $*" >&2; exit 1; }

# copy FILE...: from /usr (or /lib, which is the same) into the tree, links as links.
copy() {
  local file target
  for file in "$@"; do
    target=${file#/usr}
    mkdir -p "$tree$(dirname "$target")"
    cp -a "/usr$target" "$tree$target"
  done
}

copy_packages() {
  local file
  dpkg-query -W -f '${Package} ${Version}\n' "${PACKAGES[@]}" >"$tree/packages.txt" ||
    fail "a package is missing; run scripts/setup.sh first"
  while read -r file; do
    [[ -f $file || -L $file ]] && copy "$file"
  done < <(dpkg -L "${PACKAGES[@]}" | grep -E '^(/usr)?/lib/|^/usr/include/|^/usr/share/cmake/' |
    grep -v '/pkgconfig/' | sort -u)
}

# Boost has 133 MB of headers. What the sources include, and what that includes:
copy_boost() {
  local headers
  mapfile -t headers < <({
    echo '#include <boost/version.hpp>'
    grep -rhE --include='*.h' --include='*.cpp' --exclude-dir=build --exclude-dir=.venv \
      '^#include <boost/' .
  } | sort -u | g++ -std=c++20 -M -x c++ - | tr ' \\' '\n' | grep '^/usr/include/boost/' | sort -u)
  [[ ${#headers[@]} -gt 1 ]] || fail "g++ -M found no header of Boost; run scripts/setup.sh first"
  copy "${headers[@]}"
}

# What the libraries and programs of the tree load, as files under their sonames.
copy_loaded() {
  local name arrow path
  while read -r name arrow path _; do
    [[ $arrow == "=>" && ! $name =~ $HOST_LIBRARIES && ! -e $tree/lib/$multiarch/$name ]] || continue
    cp -L "$path" "$tree/lib/$multiarch/$name"
  done < <(find "$tree" -type f \( -name '*.so*' -o -path '*/bin/*' \) -exec ldd {} + 2>/dev/null)
}

# pkg-config with files of its own: Debian's ask for the development packages of all that libzmq uses.
write_pkg_config() {
  mkdir -p "$tree/bin" "$tree/lib/pkgconfig"
  cp -L "$(command -v pkgconf)" "$tree/bin/pkgconf"
  cat >"$tree/bin/pkg-config" <<END
#!/bin/sh
prefix=\$(cd "\$(dirname "\$0")/.." && pwd)
export LD_LIBRARY_PATH="\$prefix/lib/$multiarch" PKG_CONFIG_LIBDIR="\$prefix/lib/pkgconfig"
exec "\$prefix/bin/pkgconf" "\$@"
END
  chmod +x "$tree/bin/pkg-config"
  local module library
  for module in libzmq:zmq libxxhash:xxhash numa:numa; do
    library=${module#*:} module=${module%:*}
    cat >"$tree/lib/pkgconfig/$module.pc" <<END
prefix=\${pcfiledir}/../..
Name: $module
Description: $module
Version: $(pkg-config --modversion "$module")
Libs: -L\${prefix}/lib/$multiarch -l$library
Cflags: -I\${prefix}/include
END
  done
}

collect() {
  multiarch=$(g++ -print-multiarch)
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  chmod 755 "$tree"
  copy_packages
  copy_boost
  write_pkg_config
  copy_loaded
  mkdir -p "$FOLDER"
  tar --owner=0 --group=0 --sort=name -C "$tree" -czf "$FOLDER/deps.tar.gz" .
  cp "$tree/packages.txt" "$FOLDER/"
  local kb
  kb=$(du -sk --apparent-size "$FOLDER" | cut -f1)
  echo "gpu_host_deps: $FOLDER holds $((kb / 1000)).$((kb % 1000 / 100)) MB," \
    "$(wc -l <"$FOLDER/packages.txt") packages"
  ((kb < LIMIT_MB * 1000)) || fail "that is more than the $LIMIT_MB MB that may travel"
}

# Every package by name, so that none is found elsewhere. DT_RPATH and not DT_RUNPATH: it also serves
# what the libraries themselves load, without an LD_LIBRARY_PATH for the host's own programs. -L: what
# is linked by its bare name.
write_initial_cache() {
  local prefix=$1 libraries config
  libraries=$(dirname "$(find "$prefix/lib" -name 'libzmq.so.*' | head -1)")
  {
    echo "set(CMAKE_PREFIX_PATH $prefix CACHE PATH \"\")"
    echo "set(PKG_CONFIG_EXECUTABLE $prefix/bin/pkg-config CACHE FILEPATH \"\")"
    find "$prefix" \( -name '*Config.cmake' -o -name '*-config.cmake' \) | while read -r config; do
      local name=${config##*/}
      name=${name%Config.cmake}
      echo "set(${name%-config.cmake}_DIR $(dirname "$config") CACHE PATH \"\")"
    done
    echo "set(Boost_INCLUDE_DIR $prefix/include CACHE PATH \"\")"
    echo "set(Boost_NO_BOOST_CMAKE ON CACHE BOOL \"\")"
    echo "set(LibTorch_SYSTEM_FMT $prefix/include CACHE PATH \"\")"
    echo "set(ELIXIR_GLOO_INCLUDE $prefix/include CACHE PATH \"\")"
    local kind flags="-L$libraries -Wl,--disable-new-dtags,-rpath,$libraries"
    for kind in EXE SHARED MODULE; do
      echo "set(CMAKE_${kind}_LINKER_FLAGS \"$flags\" CACHE STRING \"\")"
    done
  } >"$prefix/initial_cache.cmake"
}

unpack() {
  [[ -f $FOLDER/deps.tar.gz ]] ||
    fail "there is no $FOLDER/deps.tar.gz; run scripts/gpu_host_deps.sh on the machine you build on and
bring the folder along"
  mkdir -p "$1"
  local prefix
  prefix=$(cd "$1" && pwd)
  tar -C "$prefix" -xzf "$FOLDER/deps.tar.gz"
  write_initial_cache "$prefix"
  echo "gpu_host_deps: $(wc -l <"$prefix/packages.txt") packages in $prefix"
}

case "${1:-}" in
  "") collect ;;
  unpack) [[ -n ${2:-} ]] || fail "unpack needs a PREFIX"; unpack "$2" ;;
  -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0" ;;
  *) fail "unknown argument '$1'; scripts/gpu_host_deps.sh --help" ;;
esac
