#pragma once

// The facts about itself that each rank of a job tells the others. No torch, no sockets.

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
  std::string gpu_uuid;  // its GPU's, as nvidia-smi -L writes it; "" on CPUs

  // "rank 2 (pid 77 on node-b)"
  std::string name() const;
};

// Converts to one line of text, and back. Returns kProtocol for text that encode_member never
// writes.
std::string encode_member(const Member& member);
Result<Member> decode_member(std::string_view text);

// Returns kInvalidArgument if two ranks compute on one GPU, and names the ranks and the GPU. NCCL
// cannot work with this; the host exchange can.
Status refuse_shared_gpus(std::span<const Member> members);

}  // namespace elixir
