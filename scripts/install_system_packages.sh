#!/usr/bin/env bash
# Installs what the build needs from the system's packages, if anything is missing; with
# `development`, what tests and checks need as well.
# Usage: scripts/install_system_packages.sh PYTHON build|development
set -euo pipefail

python=${1:-python3}
purpose=${2:-development}

has_header() {
  echo "#include <$1>" | cpp -x c++ - >/dev/null 2>&1
}

# Prints the Debian package of each thing that is missing.
missing_packages() {
  local command
  for command in g++ make; do
    command -v "$command" >/dev/null || echo build-essential
  done
  command -v cmake >/dev/null || echo cmake
  command -v ninja >/dev/null || echo ninja-build
  has_header nlohmann/json.hpp || echo nlohmann-json3-dev
  has_header xxhash.h || echo libxxhash-dev
  if [ "$purpose" = development ]; then
    command -v clang-format >/dev/null || echo clang-format
    has_header doctest/doctest.h || echo doctest-dev
    command -v ldb >/dev/null || echo rocksdb-tools # the tests read our files with it
  fi
  if ! command -v "$python" >/dev/null; then
    echo python3 python3-venv python3-dev
    return
  fi
  "$python" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
  "$python" -c '
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))
' || echo python3-dev
}

packages=$(missing_packages | sort -u | tr '\n' ' ')
packages=${packages% }
[ -n "$packages" ] || exit 0

fail() {
  echo "error: $1" >&2
  echo "Needed, as Debian calls it: $packages" >&2
  exit 1
}

command -v apt-get >/dev/null || fail "packages are missing and there is no apt-get to install them."
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || fail "packages are missing; installing them takes root or sudo."
  as_root=(sudo)
  [ -t 0 ] || as_root=(sudo -n)
fi

echo "Installing system packages: $packages"
export DEBIAN_FRONTEND=noninteractive
# Another apt-get may be at work, such as the daily upgrade of a new machine.
apt_get=(apt-get -qq -o DPkg::Lock::Timeout=600)
# A machine that never ran apt-get update knows no packages. One unreachable source among several
# need not matter: what counts is whether the packages can be installed.
"${as_root[@]}" "${apt_get[@]}" update ||
  echo "warning: apt-get update failed, going on with the package lists at hand." >&2
# shellcheck disable=SC2086 # a list of words
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  "${apt_get[@]}" install --yes --no-install-recommends $packages >/dev/null ||
  fail "apt-get could not install the packages."

still_missing=$(missing_packages | sort -u | tr '\n' ' ')
[ -z "$still_missing" ] || {
  packages=${still_missing% }
  fail "still missing for $python after the installation (another PYTHON= may help)."
}
