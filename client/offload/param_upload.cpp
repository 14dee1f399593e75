// Data path, hop 6 of 6: updated parameters go from the param slots into an rCache block.

#include "client/offload/param_upload.h"

#include "client/error.h"

namespace elixir {

void ParamUpload::fill(uint32_t chunk, uint32_t step, std::byte* block) {
  throw_if_error(session_.wait_param(chunk, step));
  exchange_.gather(chunk, block);
}

}  // namespace elixir
