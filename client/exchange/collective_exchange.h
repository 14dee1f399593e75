#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/device/device_states.h"
#include "client/exchange/collective_group.h"
#include "client/exchange/exchange.h"
#include "client/exchange/grad_blocks.h"
#include "client/exchange/grad_publisher.h"
#include "client/session/session.h"

namespace elixir {

// The exchange of ZeRO-3 (Rajbhandari et al., arXiv 1910.02054, section 5.3), for ranks of one node
// or many. Each rank uploads its shard of a chunk, and an all-gather brings the other shards.
// Gradients are collected in a block on the device, where a reduce-scatter leaves the sum of this
// rank's shard. The sum goes down into the grad slot, or stays if the chunk is placed on the GPU.
//
// Ranks pair their collectives only by order. Gathers follow the operators, so every rank must run
// the same ones. Reductions follow the plan's order backwards, whatever order gradients arrive in;
// an early chunk waits in its block. Before each verdict, and in every other call of all ranks, the
// ranks check that they made the same collectives (CollectiveGroup::agree, meet).
//
// A device runs its collectives one after another, and a reduction waits for the operators that
// made its gradients. A gather behind it in backward would wait for them, too, and the next
// operator for the gather. So the reduction is held back until that gather is enqueued, if a gather
// followed it the last time. The gather brings a chunk that this step has gathered before, so it
// waits for no update. All ranks have the same order of gathers and reductions, and the new order
// depends only on that.
// Note: docs/design/elixir.md, "one order of collectives".
class CollectiveExchange final : public Exchange {
 public:
  // `order`: the chunks in the usual order of forward passes. `grad_blocks`: the number of blocks
  // in which gradients come together and wait for their turn.
  CollectiveExchange(Session& session, Device& device, CollectiveGroup& group,
                     const shm::StepRules& rules, const std::vector<shm::ParameterPlace>& places,
                     const std::vector<uint32_t>& order, uint32_t grad_blocks);

  size_t block_bytes() const override;
  void hand_out(uint32_t chunk, float* values) override;
  void load(uint32_t chunk, const float* values) override;
  void await_loaded(CollectiveKind call) override;
  void broadcast(std::span<std::byte> bytes) override;
  void read_masters(uint32_t chunk, float* values) override;
  void read_moment(uint32_t chunk, uint32_t moment, float* values) override;
  void read_image(uint32_t chunk, std::byte* image) override {
    device_states_->read_image(chunk, image);
  }
  void load_image(uint32_t chunk, const std::byte* image) override {
    device_states_->load_image(chunk, image);
  }

  std::byte* own_block(uint32_t) override { return nullptr; }
  bool ready(uint32_t, uint32_t) override { return false; }
  void gather(uint32_t chunk, uint32_t step, std::byte* block, DeviceEvent unused,
              DeviceEvent filled) override;

  bool begin_grads(uint32_t chunk, uint32_t step, uint32_t micro_step) override;
  GradTarget grad_target(uint32_t chunk) override;
  void end_grads(uint32_t chunk, uint32_t step, uint32_t micro_step) override;
  bool others_go_on() override;
  void discard_grads() override;

  void post(const shm::StepRecord& record, const double* late_metric) override;
  void drain() override { publisher_.drain(); }
  void update_on_device(const optim::ParameterSteps& updates) override;
  double mean_metric(uint32_t step, double mine) override;
  void synchronize(uint32_t step) override;
  uint64_t d2d_bytes() const override { return d2d_bytes_; }

 private:
  struct MicroStep {
    PendingGrads grads;
    bool filled = false;
    uint32_t step = 0, number = 0;
  };

  void forget_micro_steps();
  std::byte* own_shard(std::byte* block) const;
  bool next_is_filled(uint32_t chunk) const;
  bool any_goes_on(bool mine);
  void reduce_in_order();
  void begin_reduction(uint32_t chunk);
  void reduce_held_back();
  void reduce(uint32_t chunk);
  void take_shard(uint32_t chunk, const MicroStep& of, const std::byte* shard);
  NormSum norms_of_all();
  void add_norm_of_sum(uint32_t chunk, NormSum& sum);
  void note(uint64_t kind, uint32_t chunk);
  void gather_shards(uint32_t chunk, std::span<const float> mine, float* values);
  void wait_for(Stream stream);
  void require(const Status& status);

  Session& session_;
  Device& device_;
  CollectiveGroup& group_;
  const shm::Shape shape_;
  const shm::StepRules rules_;
  const uint64_t shard_bytes_;  // a whole shard's bytes
  const double timeout_s_;
  const std::vector<uint32_t> reduce_order_;
  const std::vector<std::string> names_;         // the trained parameters' names, in table order
  std::unique_ptr<DeviceStates> device_states_;  // null: no chunks placed on the GPU
  GradBlocks grad_blocks_;
  // By chunk: micro-steps that wait for their turn, then the one that is being filled.
  std::vector<std::deque<MicroStep>> micro_steps_;
  std::vector<uint32_t> reduced_;       // by chunk: micro-steps reduced since the last step
  size_t next_to_reduce_ = 0;           // in reduce_order_
  std::optional<uint32_t> held_back_;   // the chunk whose reduction waits for a gather
  std::optional<uint32_t> last_begun_;  // the last chunk to be reduced, if no gather came since
  // By chunk: whether a gather followed its last reduction and brought a chunk that the step had
  // gathered before.
  std::vector<uint8_t> gather_follows_;
  std::vector<uint32_t> gathered_at_;  // by chunk: the step of the last gather
  // How often all chunks have been reduced in the step, and how often the ranks have agreed to do
  // so. A rank begins another cycle only after they agreed, because every rank must take part.
  uint32_t cycles_ = 0, agreed_cycles_ = 1;
  std::byte* norms_ = nullptr;    // a NormSum per chunk, for this rank's shard; device memory
  NormSum* own_norms_ = nullptr;  // copy of norms_ in host memory
  uint64_t d2d_bytes_ = 0;
  uint64_t history_ = 0;  // a hash of the collectives so far
  uint32_t posted_ = 0;   // the last posted step
  DeviceEvent uploaded_, computed_, shard_reduced_, updated_, done_;
  GradPublisher publisher_;  // last: it ends before what it publishes
};

}  // namespace elixir
