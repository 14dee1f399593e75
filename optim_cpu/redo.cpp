#include "optim_cpu/redo.h"

#include <cstring>

namespace elixir::optim {
namespace {

const RedoRecord::Half& last_half(const RedoRecord& record) {
  return record.half[record.half[1].sequence > record.half[0].sequence ? 1 : 0];
}

}  // namespace

Result<RedoMark> last_redo(const RedoRecord& record) {
  const RedoRecord::Half& last = last_half(record);
  if (last.sequence == 0) return RedoMark();
  if (last.numel == 0 || last.numel > kRedoVector) {
    return error(Code::kProtocol,
                 "a redo record holds {} parameters where 1 to {} are possible: the state's memory "
                 "was overwritten; start again from a checkpoint",
                 last.numel, kRedoVector);
  }
  return RedoMark{.step = last.step, .index = last.index, .numel = last.numel};
}

void apply_redo(ComputeType type, const RedoRecord& record, const StatePlace& target) {
  const Result<RedoMark> mark = last_redo(record);
  ELIXIR_CHECK(mark.ok() && mark->numel > 0, "nothing is recorded that could be done again");
  const RedoRecord::Half& last = last_half(record);
  ELIXIR_CHECK(last.sequence != 0 && last.numel >= 1 && last.numel <= kRedoVector,
               "nothing to apply: sequence {}, numel {}", last.sequence, last.numel);
  std::memcpy(target.param, last.param, last.numel * element_bytes(type));
  if (type != ComputeType::kFp32) {
    std::memcpy(target.master, last.master, last.numel * master_bytes(type));
  }
  for (uint32_t i = 0; i < kMaxMoments; ++i) {
    std::memcpy(target.moments[i], last.moments[i], last.numel * sizeof(float));
  }
}

}  // namespace elixir::optim
