#pragma once

#include <memory>
#include <vector>

#include "client/device/device_states.h"
#include "client/exchange/exchange.h"
#include "client/exchange/grad_blocks.h"
#include "client/exchange/grad_publisher.h"
#include "client/session/session.h"

namespace elixir {

// The parameter server, for the ranks of one node. A chunk is gathered by copying its shards
// straight from every rank's param slots. The whole gradient goes down into this rank's grad slot,
// in one copy if the device has blocks to collect it. The workers of elixird sum the ranks'
// gradients inside the update, in rank order. There is no collective, and ranks meet only in
// elixird. Every plan gives the same bits.
//
// Chunks placed on the GPU never leave the device; only a job with one rank may have them.
class HostExchange final : public Exchange {
 public:
  // `grad_blocks`: number of blocks that collect gradients; 0: gradients go straight into slots.
  // REQUIRES: Device::copies_at_once(), or some blocks if any chunk leaves the device.
  HostExchange(Session& session, Device& device, const shm::StepRules& rules,
               const std::vector<shm::ParameterPlace>& places, uint32_t grad_blocks);

  size_t block_bytes() const override { return shape_.chunk_bytes(); }
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

  std::byte* own_block(uint32_t chunk) override;
  bool ready(uint32_t chunk, uint32_t step) override;
  void gather(uint32_t chunk, uint32_t step, std::byte* block, DeviceEvent unused,
              DeviceEvent filled) override;

  bool begin_grads(uint32_t chunk, uint32_t step, uint32_t micro_step) override;
  GradTarget grad_target(uint32_t chunk) override;
  void end_grads(uint32_t chunk, uint32_t step, uint32_t micro_step) override;
  bool others_go_on() override { return false; }  // elixird expects none from a rank that posted
  void discard_grads() override;

  void post(const shm::StepRecord& record, const double* late_metric) override;
  void drain() override { publisher_.drain(); }
  void update_on_device(const optim::ParameterSteps& updates) override;
  double mean_metric(uint32_t step, double mine) override;
  void synchronize(uint32_t step) override;
  uint64_t d2d_bytes() const override { return 0; }

 private:
  void drop_pending();
  void post_with_own_norms(const shm::StepRecord& record, const double* late_metric);

  Session& session_;
  Device& device_;
  const shm::Shape shape_;
  const shm::StepRules rules_;
  std::unique_ptr<DeviceStates> device_states_;  // null: no chunks placed on the GPU
  const bool in_blocks_;                         // blocks on the device collect gradients
  GradBlocks grad_blocks_;
  std::vector<PendingGrads> pending_;  // by chunk; put aside in its grad slot
  std::byte* norms_ = nullptr;         // a NormSum per chunk placed on the GPU, device memory
  NormSum* own_norms_ = nullptr;       // copy of norms_ in host memory
  DeviceEvent squared_, norms_down_, done_;
  GradPublisher publisher_;  // last: it ends before what it publishes
};

}  // namespace elixir
