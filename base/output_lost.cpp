#include "base/output_lost.h"

#include <cstring>

#include "base/check.h"

namespace elixir {

Status output_lost(int failure) {
  ELIXIR_CHECK(failure >= 0, "{} is not an errno", failure);
  return error(Code::kResourceExhausted,
               "lines of standard output are lost ({}): make room on its disk, or redirect it to "
               "another place",
               failure == 0 ? "a write failed" : std::strerror(failure));
}

}  // namespace elixir
