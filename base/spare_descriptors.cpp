#include "base/spare_descriptors.h"

#include <sys/eventfd.h>

#include <string>
#include <vector>

#include "base/check.h"
#include "base/fd.h"

namespace elixir {

Status check_spare_descriptors(uint32_t descriptors) {
  constexpr uint32_t kMost = 1000;  // it opens all of them
  ELIXIR_CHECK(descriptors > 0 && descriptors <= kMost, "{} descriptors", descriptors);
  std::vector<UniqueFd> tried;
  tried.reserve(descriptors);
  while (tried.size() < descriptors) {
    tried.emplace_back(::eventfd(0, EFD_CLOEXEC));
    if (tried.back().valid()) continue;
    return errno_status(Code::kInternal,
                        "cannot open " + std::to_string(descriptors) + " more descriptors");
  }
  return Status();
}

}  // namespace elixir
