#!/usr/bin/env bash
# Makes the API reference as HTML: of the C++ library from the comments of its public headers, and of `import elixir`
# from its docstrings (scripts/python_reference.py).
#
#   scripts/api_reference.sh [FOLDER]     FOLDER: where it is written (default: build/api)
#
# Needs doxygen, which scripts/setup.sh installs. Takes a few seconds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  sed -n 's/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed -n '2,7p'
  exit 0
fi
output=${1:-build/api}
command -v doxygen >/dev/null || { echo "api_reference: doxygen is missing; run scripts/setup.sh" >&2; exit 2; }

headers=$(mktemp -d)
trap 'rm -rf "$headers"' EXIT
cmake -DSOURCE_DIR="$PWD" -DINCLUDE_DIR="$headers" -DDEPENDS_FILE="$headers/depends" -P package/write_headers.cmake
scripts/python_reference.py >"$headers/python.md"
cat >"$headers/index.md" <<END
# Elixir {#mainpage}

* @ref python_reference "Python": import elixir
* [C++](annotated.html): namespace elixir, and <elixir/elixir.h>
END
mkdir -p "$output"
# Comments are `//`: the filter turns them into Doxygen's `///`, and those behind a member into `///<`.
doxygen - <<END
PROJECT_NAME = Elixir
PROJECT_BRIEF = "Trains language models that are too large for the GPUs at hand"
INPUT = $headers/elixir $headers/index.md $headers/python.md
USE_MDFILE_AS_MAINPAGE = $headers/index.md
TOC_INCLUDE_HEADINGS = 3
RECURSIVE = YES
FILE_PATTERNS = *.h *.md
STRIP_FROM_PATH = $headers
STRIP_FROM_INC_PATH = $headers
OUTPUT_DIRECTORY = $output
GENERATE_LATEX = NO
HAVE_DOT = NO
CLASS_GRAPH = NO
JAVADOC_AUTOBRIEF = YES
EXTRACT_ALL = YES
HIDE_UNDOC_MEMBERS = NO
MARKDOWN_SUPPORT = YES
SORT_MEMBER_DOCS = NO
QUIET = YES
WARNINGS = YES
WARN_IF_UNDOCUMENTED = NO
MACRO_EXPANSION = YES
PREDEFINED = ELIXIR_PUBLIC= ELIXIR_MATH=
INPUT_FILTER = "sed -E 's#^( *)// ?#\\1/// #; s#([;,{)] +)// #\\1///< #'"
END
echo "api_reference: $output/html/index.html"
