// Data path, hop 4 of 6, of swing chunks: updated here, in the place of a worker.

#include "client/exchange/swing_runner.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/throw_error.h"

namespace elixir {
namespace {

constexpr uint32_t kNothing = UINT32_MAX;
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
      n_grads_(shape_.exchange == shm::Exchange::kHost ? shape_.ranks : 1),
      pieces_(shape_.n_swing_chunks),
      lanes_(shape_.n_swing_lanes),
      constants_(shm::kMaxParamGroups) {
  ELIXIR_CHECK(shape_.n_swing_chunks > 0, "no chunk swings");
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
      pieces_[chunk - shape_.first_swing()].push_back({begin - shard_begin, end - begin, i});
    }
  }
  for (std::vector<Piece>& pieces : pieces_) {
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    // What lies between two parameters goes with the first: gradients and states are zero there.
    for (size_t i = 0; i + 1 < pieces.size(); ++i) {
      pieces[i].numel = pieces[i + 1].begin - pieces[i].begin;
    }
  }
  const uint64_t grads_bytes = std::max(n_grads_ * shape_.shard_bytes(),
                                        shape_.shard_numel() * sizeof(float));
  for (uint32_t lane = 0; lane < shape_.n_swing_lanes; ++lane) {
    lanes_[lane].image =
        device.allocate(shape_.image_bytes(), "a buffer for states of swing chunks", kRemedy);
    lanes_[lane].grads =
        device.allocate(grads_bytes, "a buffer for gradients of swing chunks", kRemedy);
    lanes_[lane].down = device.create_event();
    lanes_[lane].spare_slot = shape_.first_swing_spare(lane);
  }
  thread_ = std::thread([this] { run(); });
}

SwingRunner::~SwingRunner() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    if (done_ < posted_) session_.fail(error(Code::kUnavailable, "the trainer ends"));
  }
  changed_.notify_all();
  thread_.join();
}

void SwingRunner::post(uint32_t step) {
  {
    const MutexLock lock(mutex_);
    ELIXIR_CHECK(step == posted_ + 1, "step {} is posted after step {}", step, posted_);
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
    // The model's thread waits for these updates. elixird makes them once this rank is gone.
    if (!status.ok()) session_.fail(status);
    lock.lock();
    done_ = step;
    if (!status.ok()) {
      done_ = posted_;
      if (stopping_) return;
    }
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
  for (uint32_t chunk = shape_.first_swing(); chunk < shape_.n_chunks; ++chunk) {
    Lane& lane = lanes_[shape_.swing_lane(chunk)];
    end(lane, step);
    throw_if_error(session_.wait_swing(chunk, step));
    begin(lane, chunk);
    for (Lane& other : lanes_) {  // others may be done, and are told of in their order
      const bool is_done = other.chunk != kNothing && &other != &lane && device_.done(other.down);
      if (is_done) end(other, step);
    }
  }
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    end(lanes_[(shape_.n_swing_chunks + i) % lanes_.size()], step);
  }
}

// Enqueues the chunk's update.
void SwingRunner::begin(Lane& lane, uint32_t chunk) {
  const Stream stream = swing_stream(shape_.swing_lane(chunk));
  lane.chunk = chunk;
  lane.from_slot = session_.slot(chunk);
  copy(stream, lane.image, session_.swing_image(lane.from_slot), shape_.image_bytes(), /*up=*/true);
  upload_grads(lane, chunk, stream);
  update(lane, chunk, stream);
  copy(stream, lane.image, session_.swing_image(lane.spare_slot), shape_.image_bytes(),
       /*up=*/false);
  device_.record(lane.down, stream);
}

// Waits for it, and tells elixird. What the chunk has left is the lane's from here on.
void SwingRunner::end(Lane& lane, uint32_t step) {
  if (lane.chunk == kNothing) return;
  device_.synchronize(lane.down);
  const uint32_t chunk = std::exchange(lane.chunk, kNothing);
  throw_if_error(session_.swing_updated(chunk, lane.spare_slot, step));
  lane.spare_slot = lane.from_slot;
}

void SwingRunner::copy(Stream stream, std::byte* device, std::byte* host, size_t bytes, bool up) {
  for (size_t at = 0; at < bytes; at += kPieceBytes) {
    const size_t piece = std::min(kPieceBytes, bytes - at);
    if (up) {
      device_.upload(stream, device + at, host + at, piece);
    } else {
      device_.download(stream, host + at, device + at, piece);
    }
  }
}

void SwingRunner::upload_grads(Lane& lane, uint32_t chunk, Stream stream) {
  const auto up = [&](std::byte* to, const void* from, size_t bytes) {
    for (size_t at = 0; at < bytes; at += kPieceBytes) {
      device_.upload(stream, to + at, static_cast<const std::byte*>(from) + at,
                     std::min(kPieceBytes, bytes - at));
    }
  };
  const uint64_t numel =
      shape_.shard_end(session_.rank()) - shape_.shard_begin(session_.rank());
  if (session_.swings_sums(chunk)) {
    return up(lane.grads, session_.grad_sum(chunk), numel * sizeof(float));
  }
  for (uint32_t rank = 0; rank < n_grads_; ++rank) {
    up(lane.grads + rank * shape_.shard_bytes(), session_.shard_grads(chunk, rank),
       numel * element_bytes(shape_.type));
  }
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

void SwingRunner::update(const Lane& lane, uint32_t chunk, Stream stream) {
  const std::vector<Piece>& pieces = pieces_[chunk - shape_.first_swing()];
  const uint64_t element = element_bytes(shape_.type), master = master_bytes(shape_.type);
  const bool of_sums = session_.swings_sums(chunk);
  std::array<const void*, optim::kMaxGrads> grads;
  for (size_t i = 0; i < pieces.size();) {
    const Session::SwingParameter said = session_.swing_parameter(pieces[i].parameter);
    Piece run = pieces[i];
    // Those of one kind together: as a rule the whole shard.
    for (++i; i < pieces.size(); ++i) {
      const Session::SwingParameter next = session_.swing_parameter(pieces[i].parameter);
      const bool adjacent = run.begin + run.numel == pieces[i].begin;
      if (!adjacent || next.group != said.group || next.updates != said.updates) break;
      run.numel += pieces[i].numel;
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
    device_.update(stream, span, *step);
  }
}

}  // namespace elixir
