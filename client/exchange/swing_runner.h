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

// Updates this rank's shards of the swing chunks after each step's verdict: their states and
// gradients go up, Adam runs on the device, the new states go down into a spare slot, and elixird
// is told (Deep Optimizer States, arXiv 2410.21316, whose algorithm 1 this is but for its faults:
// the last chunks are waited for as the others are). A thread of its own, a buffer a lane
// (shm::Shape::n_swing_lanes), and a stream a buffer: up, compute and down of one chunk are in
// order, those of chunks in different lanes beside one another.
//
// Copies go in pieces, of which the device has kPiecesAtOnce of each direction at a time: a gather
// that an operator waits for is held up by these and no more, however the device takes turns among
// streams, and the link is never idle.
//
// Bits are those of elixird's update. What a rank has not updated when it dies, elixird does.
class SwingRunner {
 public:
  static constexpr size_t kPieceBytes = size_t{16} << 20;
  static constexpr uint32_t kPiecesAtOnce = 2;

  // REQUIRES: the session's shape has swing chunks. `places` of trained parameters, in the order of
  // the parameter table. Throws elixir::Error.
  SwingRunner(Session& session, Device& device, const std::vector<shm::ParameterPlace>& places);
  // Ends at once where a step is in hand: the session has failed then.
  ~SwingRunner();
  SwingRunner(const SwingRunner&) = delete;

  // The step is posted, or about to be by another thread. In order, each once. Waits for a runner
  // that is several steps behind.
  void post(uint32_t step);

 private:
  // Elements of a shard: a parameter's, and what lies between it and the next.
  struct Part {
    uint64_t begin, numel;
    uint32_t parameter;
  };
  // Of a lane's chunk, not on its way yet.
  struct Copy {
    std::byte* device;
    std::byte* host;
    size_t bytes;
  };
  struct Lane {
    Stream stream = Stream::kSwing0;
    std::byte* image = nullptr;  // device memory: a slot's, and the gradients'
    std::byte* grads = nullptr;
    DeviceEvent updated;
    uint32_t spare_slot = 0;
    // In hand; chunk UINT32_MAX: nothing is.
    uint32_t chunk = UINT32_MAX, from_slot = 0;
    std::vector<Copy> copies;  // of one direction, the last one first
  };
  // A part of a chunk's copies that the device has.
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
  const uint32_t n_grads_;                // a shard has so many gradients in slots
  std::vector<std::vector<Part>> parts_;  // by swing chunk
  std::vector<Lane> lanes_;

  // The runner's thread's, of the step in hand. Chunks go up, come down and end in one order: these
  // are the first that has not.
  uint32_t up_ = 0, down_ = 0, ended_ = 0;
  std::array<Piece, 2 * kPiecesAtOnce> pieces_;  // under way, a ring in the order of sending
  uint32_t oldest_ = 0, n_up_ = 0, n_down_ = 0;

  // The runner's thread's: what the step in hand updates with.
  double grad_scale_ = 1;
  std::vector<optim::AdamOptions> groups_;
  struct Constants {
    uint32_t updates = 0;  // 0: none yet
    optim::AdamStep step = {};
  };
  std::vector<Constants> constants_;  // by group: as a rule the next parameter's, too

  Mutex mutex_;
  CondVar changed_;
  uint32_t posted_ ELIXIR_GUARDED_BY(mutex_) = 0, done_ ELIXIR_GUARDED_BY(mutex_) = 0;
  bool stopping_ ELIXIR_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: what it uses is there
};

}  // namespace elixir
