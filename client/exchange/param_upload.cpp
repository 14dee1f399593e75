// Data path, hop 6 of 6: updated parameters go from the param slots into an rCache block.

#include "client/exchange/param_upload.h"

namespace elixir {

ParamUpload::ParamUpload(Device& device, Exchange& exchange)
    : device_(device), exchange_(exchange) {}

void ParamUpload::fill(uint32_t chunk, uint32_t step, std::byte* block, DeviceEvent unused,
                       DeviceEvent filled) {
  device_.wait(Stream::kUpload, unused);
  device_.wait(Stream::kGather, unused);
  exchange_.gather(chunk, step, block, filled);
}

}  // namespace elixir
