#pragma once

#include <gtest/gtest.h>

#include "client/exchange/exchange.h"

namespace elixir::test {

// An exchange in which each call fails the test, unless the test overrides it.
class UnaskedExchange : public Exchange {
 public:
  size_t block_bytes() const override { return 0; }
  void hand_out(uint32_t, float*) override { unasked(); }
  void load(uint32_t, const float*) override { unasked(); }
  void await_loaded(CollectiveKind) override { unasked(); }
  void broadcast(std::span<std::byte>) override { unasked(); }
  void read_masters(uint32_t, float*) override { unasked(); }
  void read_moment(uint32_t, uint32_t, float*) override { unasked(); }
  void read_image(uint32_t, std::byte*) override { unasked(); }
  void load_image(uint32_t, const std::byte*) override { unasked(); }
  std::byte* own_block(uint32_t) override { return unasked(), nullptr; }
  bool ready(uint32_t, uint32_t) override { return unasked(), false; }
  void gather(uint32_t, uint32_t, std::byte*, DeviceEvent, DeviceEvent) override { unasked(); }
  bool begin_grads(uint32_t, uint32_t, uint32_t) override { return unasked(), false; }
  GradTarget grad_target(uint32_t) override { return unasked(), GradTarget(); }
  void end_grads(uint32_t, uint32_t, uint32_t) override { unasked(); }
  bool others_go_on() override { return unasked(), false; }
  void discard_grads() override { unasked(); }
  void post(const shm::StepRecord&, const double*) override { unasked(); }
  void drain() override { unasked(); }
  void update_on_device(const optim::ParameterSteps&) override { unasked(); }
  double mean_metric(uint32_t, double) override { return unasked(), 0; }
  void synchronize(uint32_t) override { unasked(); }
  uint64_t d2d_bytes() const override { return 0; }

 private:
  static void unasked() { ADD_FAILURE() << "a call that was not expected"; }
};

}  // namespace elixir::test
