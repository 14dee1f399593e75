// Data path, hop 6 of 6: updated parameters go from the param slots into an rCache block.

#include "client/offload/param_upload.h"

namespace elixir {

ParamUpload::ParamUpload(Device& device, Exchange& exchange)
    : device_(device), exchange_(exchange), block_free_(device.create_event()) {}

void ParamUpload::fill(uint32_t chunk, uint32_t step, std::byte* block) {
  device_.record(block_free_, Stream::kCompute);
  device_.wait(Stream::kUpload, block_free_);
  device_.wait(Stream::kGather, block_free_);
  exchange_.gather(chunk, step, block);
}

}  // namespace elixir
