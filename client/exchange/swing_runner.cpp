// Data path, hop 4 of 6, of swing chunks: updated here, in the place of a worker.

#include "client/exchange/swing_runner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/throw_error.h"

namespace elixir {
namespace {

constexpr uint32_t kNothing = UINT32_MAX;
// The session keeps the results of the last kStepRing - 2 steps that are posted, which may be one
// more than the runner has been told of.
constexpr uint32_t kMostStepsBehind = shm::kStepRing / 2;
constexpr const char* kRemedy =
    "let fewer chunks swing (--swing-stride 0), use shorter chunks (--chunk-numel), or cache "
    "fewer (--rcache-blocks)";

optim::AdamOptions options_of(const shm::StepRecord& record, uint32_t group) {
  const shm::ParamGroupRecord& of = record.groups[group];
  return {.lr = of.lr,
          .beta1 = of.hyper[kBeta1],
          .beta2 = of.hyper[kBeta2],
          .eps = of.hyper[kEps],
          .weight_decay = of.weight_decay,
          .rule = static_cast<UpdateRule>(record.rule)};
}

}  // namespace

SwingRunner::SwingRunner(Session& session, Device& device,
                         const std::vector<shm::ParameterPlace>& places)
    : session_(session),
      device_(device),
      shape_(session.shape()),
      n_grads_(shape_.shard_gradients()),
      parts_(shape_.n_swing_chunks),
      lanes_(shape_.n_swing_lanes),
      constants_(shm::kMaxParamGroups) {
  ELIXIR_CHECK(shape_.n_swing_chunks > 0, "no chunk swings");
  ELIXIR_CHECK(shape_.n_swing_lanes <= kSwingStreams, "{} lanes, and {} streams for them",
               shape_.n_swing_lanes, kSwingStreams);
  const uint64_t shard_begin = shape_.shard_begin(session.rank());
  const uint64_t shard_end = shape_.shard_end(session.rank());
  for (uint32_t i = 0; i < places.size(); ++i) {
    const shm::ChunkRun run = shm::chunks_of(places[i], shape_);
    for (uint32_t chunk = run.first; chunk < run.end(); ++chunk) {
      if (!shape_.swings(chunk)) continue;
      const shm::ParameterPart part = shm::part_in(places[i], shape_, chunk);
      const uint64_t begin = std::max(part.offset, shard_begin);
      const uint64_t end = std::min(part.offset + part.numel, shard_end);
      if (begin >= end) continue;
      parts_[chunk - shape_.first_swing()].push_back({begin - shard_begin, end - begin, i});
    }
  }
  for (std::vector<Part>& parts : parts_) {
    std::sort(parts.begin(), parts.end(),
              [](const Part& a, const Part& b) { return a.begin < b.begin; });
    // What lies between two parameters goes with the first: gradients and states are zero there.
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      parts[i].numel = parts[i + 1].begin - parts[i].begin;
    }
  }
  const uint64_t grads_bytes = shape_.swing_grads_bytes();
  for (uint32_t i = 0; i < shape_.n_swing_lanes; ++i) {
    Lane& lane = lanes_[i];
    lane.stream = swing_stream(i);
    lane.image =
        device.allocate(shape_.image_bytes(), "a buffer for states of swing chunks", kRemedy);
    lane.grads = device.allocate(grads_bytes, "a buffer for gradients of swing chunks", kRemedy);
    lane.updated = device.create_event();
    lane.spare_slot = shape_.first_swing_spare(i);
    lane.copies.reserve(1 + n_grads_);
  }
  for (Piece& piece : pieces_) piece.done = device.create_event();
  thread_ = std::thread([this] { run(); });
}

SwingRunner::~SwingRunner() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    // elixird may know that a step is over before the thread does: a skipped one needs nothing of
    // it, and of any other one done_ is written last.
    if (session_.last_finished().step < posted_) {
      session_.fail(error(Code::kUnavailable, "the trainer ends"));
    }
  }
  changed_.notify_all();
  thread_.join();
}

void SwingRunner::post(uint32_t step) {
  {
    MutexLock lock(mutex_);
    ELIXIR_CHECK(step == posted_ + 1, "step {} is posted after step {}", step, posted_);
    // Nothing else holds the caller back in steps that are skipped.
    while (posted_ - done_ >= kMostStepsBehind) changed_.wait(lock);
    posted_ = step;
  }
  changed_.notify_all();
}

void SwingRunner::run() {
  bool current = false;  // a device that has failed refuses even that
  MutexLock lock(mutex_);
  for (;;) {
    while (!stopping_ && done_ == posted_) changed_.wait(lock);
    if (done_ == posted_) return;
    const uint32_t step = done_ + 1;
    lock.unlock();
    Status status;
    try {
      if (!current) device_.make_current();
      current = true;
      run_step(step);
    } catch (const Error& failure) {
      status = Status(failure.code(), failure.what());
    } catch (const std::exception& failure) {
      status = error(Code::kInternal, "updating swing chunks: {}", failure.what());
    }
    if (!status.ok()) {
      // The model's thread waits for these updates. elixird makes them once this rank is gone.
      session_.fail(status);
      abandon_step();
    }
    lock.lock();
    done_ = status.ok() ? step : posted_;
    changed_.notify_all();
    if (!status.ok() && stopping_) return;
  }
}

void SwingRunner::run_step(uint32_t step) {
  const shm::StepResult result = value_or_throw(session_.wait_committed(step));
  if (result.skipped != 0) return;
  grad_scale_ = result.grad_scale;
  const shm::StepRecord& record = session_.posted_record(step);
  groups_.clear();
  for (uint32_t group = 0; group < record.n_groups; ++group) {
    groups_.push_back(options_of(record, group));
    constants_[group].updates = 0;
  }
  for (Lane& lane : lanes_) lane.chunk = kNothing;
  up_ = down_ = ended_ = shape_.first_swing();
  n_up_ = n_down_ = 0;
  while (ended_ < shape_.n_chunks) {
    while (n_up_ < kPiecesAtOnce && send_up(step)) {
    }
    while (n_down_ < kPiecesAtOnce && send_down()) {
    }
    await_oldest(step);
  }
}

// False: there is none that could go now.
bool SwingRunner::send_up(uint32_t step) {
  if (up_ == shape_.n_chunks) return false;
  Lane& lane = lane_of(up_);
  if (lane.chunk != up_) {
    if (lane.chunk != kNothing) return false;
    // elixird is told of what is under way before it is waited for.
    if (n_up_ + n_down_ > 0 && !session_.may_swing(up_, step)) return false;
    throw_if_error(session_.wait_swing(up_, step));
    begin(lane, up_);
  }
  send_piece(lane, /*up=*/true);
  if (!lane.copies.empty()) return true;
  update(lane);
  device_.record(lane.updated, lane.stream);
  lane.copies.push_back({lane.image, session_.swing_image(lane.spare_slot), shape_.image_bytes()});
  ++up_;
  return true;
}

// Not before the update: who waits for this piece would send no other one meanwhile.
bool SwingRunner::send_down() {
  if (down_ == up_) return false;
  Lane& lane = lane_of(down_);
  if (n_up_ + n_down_ > 0 && !device_.done(lane.updated)) return false;
  Piece& piece = send_piece(lane, /*up=*/false);
  if (!lane.copies.empty()) return true;
  piece.ends_chunk = true;
  ++down_;
  return true;
}

// In the order of sending: the busier direction has a piece behind the one that is waited for.
void SwingRunner::await_oldest(uint32_t step) {
  ELIXIR_CHECK(n_up_ + n_down_ > 0, "nothing is in progress for swing chunks {} to {}", ended_,
               shape_.n_chunks);
  const Piece& piece = pieces_[oldest_];
  device_.synchronize(piece.done);
  oldest_ = (oldest_ + 1) % pieces_.size();
  --(piece.up ? n_up_ : n_down_);
  if (piece.ends_chunk) end(lane_of(ended_++), step);
}

// What the device has is waited for as far as it goes: the host's memory may end with the session.
void SwingRunner::abandon_step() {
  for (; n_up_ + n_down_ > 0; oldest_ = (oldest_ + 1) % pieces_.size()) {
    --(pieces_[oldest_].up ? n_up_ : n_down_);
    try {
      device_.synchronize(pieces_[oldest_].done);
    } catch (const Error&) {  // a device that has failed copies nothing any more
    }
  }
}

// What goes up.
void SwingRunner::begin(Lane& lane, uint32_t chunk) {
  lane.chunk = chunk;
  lane.from_slot = session_.slot(chunk);
  const uint64_t numel = shape_.shard_end(session_.rank()) - shape_.shard_begin(session_.rank());
  // The device only reads there.
  const auto add = [&](std::byte* device, const void* host, size_t bytes) {
    auto* const from = const_cast<std::byte*>(static_cast<const std::byte*>(host));
    if (bytes > 0) lane.copies.push_back({device, from, bytes});
  };
  if (session_.swings_sums(chunk)) {
    add(lane.grads, session_.grad_sum(chunk), numel * sizeof(float));
  } else {
    for (uint32_t rank = n_grads_; rank-- > 0;) {
      add(lane.grads + rank * shape_.shard_bytes(), session_.shard_grads(chunk, rank),
          numel * element_bytes(shape_.type));
    }
  }
  add(lane.image, session_.swing_image(lane.from_slot), shape_.image_bytes());
}

// Its new states are in the spare slot: elixird is told. What the chunk has left is the lane's.
void SwingRunner::end(Lane& lane, uint32_t step) {
  const uint32_t chunk = std::exchange(lane.chunk, kNothing);
  throw_if_error(session_.swing_updated(chunk, lane.spare_slot, step));
  lane.spare_slot = lane.from_slot;
}

// The first kPieceBytes of the lane's copies.
SwingRunner::Piece& SwingRunner::send_piece(Lane& lane, bool up) {
  Piece& piece = pieces_[(oldest_ + n_up_ + n_down_) % pieces_.size()];
  ++(up ? n_up_ : n_down_);
  piece.up = up;
  piece.ends_chunk = false;
  for (size_t left = kPieceBytes; left > 0 && !lane.copies.empty();) {
    Copy& copy = lane.copies.back();
    const size_t bytes = std::min(left, copy.bytes);
    if (up) {
      device_.upload(lane.stream, copy.device, copy.host, bytes);
    } else {
      device_.download(lane.stream, copy.host, copy.device, bytes);
    }
    left -= bytes;
    copy = {copy.device + bytes, copy.host + bytes, copy.bytes - bytes};
    if (copy.bytes == 0) lane.copies.pop_back();
  }
  device_.record(piece.done, lane.stream);
  return piece;
}

// Null: the parameter is not updated in the step.
const optim::AdamStep* SwingRunner::constants(uint32_t parameter) {
  const Session::SwingParameter said = session_.swing_parameter(parameter);
  if (said.group == shm::kNoGradient) return nullptr;
  const uint32_t group = said.group - 1u;
  ELIXIR_CHECK(group < groups_.size() && said.updates > 0, "parameter {} is of group {} of {}",
               parameter, group, groups_.size());
  Constants& known = constants_[group];
  if (known.updates != said.updates) {
    known = {said.updates, optim::make_adam_step(groups_[group], said.updates, grad_scale_)};
  }
  return &known.step;
}

void SwingRunner::update(const Lane& lane) {
  const std::vector<Part>& parts = parts_[lane.chunk - shape_.first_swing()];
  const uint64_t element = element_bytes(shape_.type), master = master_bytes(shape_.type);
  const bool of_sums = session_.swings_sums(lane.chunk);
  std::array<const void*, optim::kMaxGrads> grads;
  for (size_t i = 0; i < parts.size();) {
    const Session::SwingParameter said = session_.swing_parameter(parts[i].parameter);
    Part run = parts[i];
    // Those of one kind together: as a rule the whole shard.
    for (++i; i < parts.size(); ++i) {
      const Session::SwingParameter next = session_.swing_parameter(parts[i].parameter);
      const bool adjacent = run.begin + run.numel == parts[i].begin;
      if (!adjacent || next.group != said.group || next.updates != said.updates) break;
      run.numel += parts[i].numel;
    }
    const optim::AdamStep* const step = constants(run.parameter);
    if (step == nullptr) continue;
    for (uint32_t rank = 0; rank < n_grads_; ++rank) {
      grads[rank] = lane.grads + rank * shape_.shard_bytes() + run.begin * element;
    }
    optim::UpdateSpan span;
    span.type = shape_.type;
    span.n_grads = static_cast<int>(n_grads_);
    span.grads = grads.data();
    if (of_sums) span.grad_sum = reinterpret_cast<const float*>(lane.grads) + run.begin;
    span.param = lane.image + run.begin * element;
    if (master > 0) {
      span.master = lane.image + shape_.image_master_offset() + run.begin * master;
    }
    for (uint32_t moment = 0; moment < shape_.n_moments; ++moment) {
      std::byte* const first = lane.image + shape_.image_moment_offset(moment);
      span.moments[moment] = reinterpret_cast<float*>(first) + run.begin;
    }
    span.numel = run.numel;
    device_.update(lane.stream, span, *step);
  }
}

}  // namespace elixir
