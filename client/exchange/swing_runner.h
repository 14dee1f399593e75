#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "client/device/device.h"
#include "client/session/session.h"
#include "optim_cpu/adam.h"
#include "shm/parameter_table.h"

namespace elixir {

// Updates this rank's shards of the swing chunks after each step's verdict. Their states and
// gradients go up, and Adam runs on the device. The new states go down into a spare slot, and the
// runner reports this to elixird. It follows algorithm 1 of Deep Optimizer States (arXiv
// 2410.21316) but also waits for the last chunks, which that algorithm forgets. It has its own
// thread, a buffer per lane (shm::Shape::n_swing_lanes) and a stream per buffer. Upload, update and
// download of one chunk run in order. Chunks in different lanes run in parallel.
//
// Copies go in pieces, and the device has at most kPiecesAtOnce of each direction at a time. So
// only these delay a gather that an operator waits for, however the device alternates between
// streams, and the link is never idle.
//
// The result has the bits of elixird's update. If a rank dies, elixird makes its missing updates.
// Note: docs/design/elixir.md, "swing lanes".
class SwingRunner {
 public:
  static constexpr size_t kPieceBytes = size_t{16} << 20;
  static constexpr uint32_t kPiecesAtOnce = 2;

  // REQUIRES: the session's shape has swing chunks. `places`: those of trained parameters, in the
  // order of the parameter table. Throws elixir::Error.
  SwingRunner(Session& session, Device& device, const std::vector<shm::ParameterPlace>& places);
  // Ends at once. In the middle of a step, this makes the session fail.
  ~SwingRunner();
  SwingRunner(const SwingRunner&) = delete;

  // Call it once per step, in order, when the step is posted or another thread is about to post it.
  // Waits while the runner is several steps behind.
  void post(uint32_t step);

 private:
  // A parameter's elements in a shard, and the gap up to the next parameter.
  struct Part {
    uint64_t begin, numel;
    uint32_t parameter;
  };
  // A copy of a lane's chunk that is not on its way yet.
  struct Copy {
    std::byte* device;
    std::byte* host;
    size_t bytes;
  };
  struct Lane {
    Stream stream = Stream::kSwing0;
    std::byte* image = nullptr;  // device memory for a slot's image; below for gradients
    std::byte* grads = nullptr;
    DeviceEvent updated;
    uint32_t spare_slot = 0;
    // The current chunk; UINT32_MAX: none.
    uint32_t chunk = UINT32_MAX, from_slot = 0;
    std::vector<Copy> copies;  // all in one direction; back() is the next one
  };
  // A part of a chunk's copies that is enqueued on the device.
  struct Piece {
    bool up = false, ends_chunk = false;
    DeviceEvent done;
  };

  void run();
  void run_step(uint32_t step);
  bool send_up(uint32_t step);
  bool send_down();
  void await_oldest(uint32_t step);
  void abandon_step();
  Lane& lane_of(uint32_t chunk) { return lanes_[shape_.swing_lane(chunk)]; }
  void begin(Lane& lane, uint32_t chunk);
  void end(Lane& lane, uint32_t step);
  Piece& send_piece(Lane& lane, bool up);
  void update(const Lane& lane);
  const optim::AdamStep* constants(uint32_t parameter);

  Session& session_;
  Device& device_;
  const shm::Shape shape_;
  const uint32_t n_grads_;                // gradients that a shard has in slots
  std::vector<std::vector<Part>> parts_;  // by swing chunk
  std::vector<Lane> lanes_;

  // For the runner's thread, about the current step. Chunks go up, come down and end in one order.
  // Each number is the first chunk that has not done so.
  uint32_t up_ = 0, down_ = 0, ended_ = 0;
  std::array<Piece, 2 * kPiecesAtOnce> pieces_;  // in progress, a ring in the order of sending
  uint32_t oldest_ = 0, n_up_ = 0, n_down_ = 0;

  // For the runner's thread: the hyperparameters of the current step.
  double grad_scale_ = 1;
  std::vector<optim::AdamOptions> groups_;
  struct Constants {
    uint32_t updates = 0;  // 0: none yet
    optim::AdamStep step = {};
  };
  std::vector<Constants> constants_;  // by group; consecutive parameters usually have the same

  Mutex mutex_;
  CondVar changed_;
  uint32_t posted_ ELIXIR_GUARDED_BY(mutex_) = 0, done_ ELIXIR_GUARDED_BY(mutex_) = 0;
  bool stopping_ ELIXIR_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace elixir
