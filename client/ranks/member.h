#pragma once

// The ranks of a job as each tells the others about itself. No torch, no sockets.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace elixir {

struct Member {
  uint32_t rank = 0;
  uint32_t pid = 0;      // on its host
  std::string host;      // its name
  std::string gpu_uuid;  // of the GPU it computes on, as nvidia-smi -L writes it; "" on CPUs

  // "rank 2 (pid 77 on node-b)"
  std::string name() const;
};

// One line of text, and back. kProtocol for what encode_member never writes.
std::string encode_member(const Member& member);
Result<Member> decode_member(std::string_view text);

// kInvalidArgument when two ranks compute on one GPU, naming both and it: NCCL cannot, and the host
// exchange can.
Status refuse_shared_gpus(std::span<const Member> members);

}  // namespace elixir
