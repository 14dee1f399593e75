#include "client/exchange/host_exchange.h"

#include <cstring>

#include "base/check.h"
#include "base/throw_error.h"
#include "optim_cpu/gradients.h"
#include "shm/load_part.h"

namespace elixir {

HostExchange::HostExchange(Session& session, Device& device, const shm::StepRules& rules,
                           const std::vector<shm::ParameterPlace>& places, uint32_t grad_blocks)
    : session_(session),
      device_(device),
      shape_(session.shape()),
      rules_(rules),
      alone_(shape_.ranks == 1),
      in_blocks_(grad_blocks > 0),
      grad_blocks_(device, shape_.chunk_bytes(), grad_blocks),
      rounds_(shape_.all_chunks()),
      uploaded_(device.create_event()),
      updated_(device.create_event()),
      norms_down_(device.create_event()),
      downloaded_(device.create_event()),
      publisher_(device, session) {
  for (uint32_t chunk = 0; chunk < shape_.all_chunks(); ++chunk) {
    if (stays(chunk)) continue;
    ELIXIR_CHECK(in_blocks_ || device.copies_at_once(), "no blocks for gradients");
    rounds_[chunk].aside =
        resident(chunk) ? session.peer_grad_slot(chunk) : session.grad_slot(chunk);
  }
  if (shape_.n_gpu_chunks == 0) return;
  resident_ = std::make_unique<ResidentStates>(device, shape_, session.local_rank(),
                                               alone_ ? shape_.chunk_numel : 0, places);
  const char* const remedy = "let all chunks have the home cpu (--gpu-home-share 0)";
  if (!alone_) {
    staging_ = device.allocate(shape_.ranks * shape_.shard_bytes(),
                               "every rank's gradients of a shard of home gpu", remedy);
  } else if (rules.norms) {
    const size_t bytes = shape_.n_gpu_chunks * sizeof(NormSum);
    norms_ = device.allocate(bytes, "gradients' norms", remedy);
    own_norms_ = reinterpret_cast<NormSum*>(device.allocate_host(bytes, "gradients' norms"));
  }
}

uint64_t HostExchange::shard_offset_bytes(uint32_t rank) const {
  return shape_.shard_begin(rank) * element_bytes(shape_.type);
}

uint64_t HostExchange::shard_bytes(uint32_t rank) const {
  return (shape_.shard_end(rank) - shape_.shard_begin(rank)) * element_bytes(shape_.type);
}

void HostExchange::wait_for(Stream stream) {
  device_.record(downloaded_, stream);
  device_.synchronize(downloaded_);
}

void HostExchange::arrive() {
  throw_if_error(session_.wait_passed(barrier_));  // one at a time
  barrier_ = value_or_throw(session_.arrive());
}

void HostExchange::hold() {
  arrive();
  throw_if_error(session_.wait_passed(barrier_));
}

// ---- parameters up ----

std::byte* HostExchange::resident_block(uint32_t chunk) {
  return alone_ && resident(chunk) ? resident_->param(chunk) : nullptr;
}

bool HostExchange::ready(uint32_t chunk, uint32_t step) {
  if (resident(chunk)) return session_.passed(barrier_);
  return shape_.frozen(chunk) || session_.param_step(chunk) >= step;
}

void HostExchange::gather(uint32_t chunk, uint32_t step, std::byte* block, DeviceEvent filled) {
  const bool from_peers = resident(chunk);
  if (from_peers) {
    throw_if_error(session_.wait_passed(barrier_));
  } else if (!shape_.frozen(chunk)) {
    throw_if_error(session_.wait_param(chunk, step));
  }
  for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    const uint64_t bytes = shard_bytes(rank);
    if (bytes == 0) continue;
    std::byte* const to = block + shard_offset_bytes(rank);
    if (from_peers && rank == session_.local_rank()) {
      device_.copy(Stream::kUpload, to, resident_->param(chunk), bytes);
    } else {
      device_.upload(
          Stream::kUpload, to,
          from_peers ? session_.peer_param(chunk, rank) : session_.param_shard(chunk, rank), bytes);
    }
  }
  device_.record(filled, Stream::kUpload);
}

// ---- gradients down ----

GradStart HostExchange::begin_grads(uint32_t chunk, uint32_t step) {
  if (!resident(chunk)) {
    // elixird reads the slot for step-1 until it has updated the chunk, or for the round before
    // until it has added it up.
    throw_if_error(session_.wait_param(chunk, step - 1));
    if (shape_.accumulates) {
      publisher_.await(chunk);
      throw_if_error(session_.wait_taken(chunk));
      rounds_[chunk].holds = false;
    }
  } else if (!alone_) {
    throw_if_error(session_.wait_passed(barrier_));  // the peers have read the slot
  }
  return {.keeps_rounds = !shape_.accumulates, .zeroed = in_blocks_ && !stays(chunk)};
}

GradTarget HostExchange::grad_target(uint32_t chunk) {
  if (stays(chunk)) return {resident_->grads(chunk), true};
  if (!in_blocks_) return {rounds_[chunk].aside, false};
  return {grad_blocks_.hold(rounds_[chunk]), true};
}

void HostExchange::end_grads(uint32_t chunk, uint32_t step, uint32_t round) {
  if (in_blocks_ && !stays(chunk)) grad_blocks_.put_aside(rounds_[chunk]);
  if (!resident(chunk)) return publisher_.publish(chunk, step, round, rules_.immediate);
  if (alone_ && shape_.accumulates) resident_->add_round(chunk, round == 1, Stream::kCompute);
}

void HostExchange::discard_grads() {
  for (GradRound& round : rounds_) grad_blocks_.drop(round);
}

void HostExchange::post(const shm::StepRecord& record, const double* late_metric) {
  discard_grads();  // those of the next step count from zero
  const bool norms = rules_.norms && resident_ != nullptr;
  if (norms && alone_) return post_with_own_norms(record, late_metric);
  shm::StepRecord complete = record;
  if (norms) complete.norm = norms_of_peers();
  publisher_.post(complete, [late_metric](shm::StepRecord& late) {
    if (late_metric != nullptr) late.metric = *late_metric;
  });
}

void HostExchange::post_with_own_norms(const shm::StepRecord& record, const double* late_metric) {
  // The norms of the step before are on the host already: elixird has its record. No event said so.
  device_.wait(Stream::kCompute, norms_down_);
  for (uint32_t i = 0; i < shape_.n_gpu_chunks; ++i) {
    resident_->squared_norm(Stream::kCompute, shape_.n_chunks + i, norms_ + i * sizeof(NormSum));
  }
  device_.record(updated_, Stream::kCompute);
  device_.wait(Stream::kDownload, updated_);
  device_.download(Stream::kDownload, reinterpret_cast<std::byte*>(own_norms_), norms_,
                   shape_.n_gpu_chunks * sizeof(NormSum));
  device_.record(norms_down_, Stream::kDownload);
  publisher_.post(record, [this, late_metric](shm::StepRecord& complete) {
    if (late_metric != nullptr) complete.metric = *late_metric;
    for (uint32_t i = 0; i < shape_.n_gpu_chunks; ++i) add(complete.norm, own_norms_[i]);
  });
}

// Every rank sees all gradients: they share the chunks out, one to each in turn.
NormSum HostExchange::norms_of_peers() {
  wait_for(Stream::kDownload);
  hold();
  NormSum sum{};
  const uint32_t mine = session_.local_rank();
  for (uint32_t i = mine; i < shape_.n_gpu_chunks; i += shape_.ranks) {
    const uint32_t chunk = shape_.n_chunks + i;
    const void* grads[optim::kMaxGrads];
    for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
      grads[rank] = rank == mine ? session_.peer_grad_slot(chunk) : session_.peer_grad(chunk, rank);
    }
    optim::GradientSpan span;
    span.type = shape_.type;
    span.n_grads = static_cast<int>(shape_.ranks);
    span.grads = grads;
    span.numel = shape_.chunk_numel;
    optim::take_gradients(optim::best_isa(), span, &sum);
  }
  return sum;
}

// ---- chunks of home gpu ----

void HostExchange::update_resident(uint32_t step, const GroupSteps& constants) {
  if (!resident_) return;
  if (!alone_) throw_if_error(session_.wait_committed(step).status());  // all gradients are down
  for (uint32_t chunk = shape_.n_chunks; chunk < shape_.all_chunks(); ++chunk) {
    if (alone_) {
      resident_->update(chunk, {}, constants);
    } else {
      update_from_peers(chunk, constants);
    }
  }
  if (alone_) return;
  wait_for(Stream::kUpload);
  wait_for(Stream::kDownload);
  arrive();
}

void HostExchange::update_from_peers(uint32_t chunk, const GroupSteps& constants) {
  const uint32_t mine = session_.local_rank();
  const uint64_t bytes = shard_bytes(mine);
  if (bytes == 0) return;
  std::vector<const std::byte*> grads;
  device_.record(updated_, Stream::kCompute);
  device_.wait(Stream::kUpload, updated_);  // the chunk before has left the staging memory
  for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    std::byte* const to = staging_ + rank * shape_.shard_bytes();
    const std::byte* const slot =
        rank == mine ? session_.peer_grad_slot(chunk) : session_.peer_grad(chunk, rank);
    device_.upload(Stream::kUpload, to, slot + shard_offset_bytes(mine), bytes);
    grads.push_back(to);
  }
  device_.record(uploaded_, Stream::kUpload);
  device_.wait(Stream::kCompute, uploaded_);
  resident_->update(chunk, grads, constants);
  publish_resident_param(chunk);
}

void HostExchange::publish_resident_param(uint32_t chunk) {
  device_.record(updated_, Stream::kCompute);
  device_.wait(Stream::kDownload, updated_);
  device_.download(Stream::kDownload, session_.peer_param_slot(chunk), resident_->param(chunk),
                   shard_bytes(session_.local_rank()));
}

// ---- before step 1, and after the last ----

void HostExchange::load(uint32_t chunk, const float* values) {
  if (resident(chunk) || session_.local_rank() != 0) return;
  throw_if_error(session_.load_chunk(chunk, values));
}

void HostExchange::hand_out(uint32_t chunk, float* values) {
  if (!resident(chunk)) return;  // elixird takes all shards from rank 0
  if (!alone_) load_from_peers(chunk, values);
  resident_->load(chunk, values + shape_.shard_begin(session_.local_rank()));
  if (alone_) return;
  publish_resident_param(chunk);
  wait_for(Stream::kDownload);
  hold();
}

// Slots are as wide as the compute type: FP32 values pass rank 0's grad slot in one pass or two.
void HostExchange::load_from_peers(uint32_t chunk, float* values) {
  const bool gives = session_.local_rank() == 0;
  for (const shm::LoadPart part : shm::load_parts(shape_.type)) {
    if (gives) shm::put_part(values, shape_.chunk_numel, part, session_.peer_grad_slot(chunk));
    hold();
    if (!gives) shm::take_part(session_.peer_grad(chunk, 0), shape_.chunk_numel, part, values);
    hold();
  }
  // What lies between parameters must count as a zero gradient from the first step on.
  std::memset(session_.peer_grad_slot(chunk), 0, shape_.chunk_bytes());
}

void HostExchange::await_loaded() { throw_if_error(session_.await_loaded()); }

void HostExchange::read_masters(uint32_t chunk, float* values) {
  if (resident(chunk) && alone_) return resident_->read_masters(chunk, values);
  if (resident(chunk)) return read_from_peers(chunk, values);
  for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
    session_.read_masters(chunk, rank, values + shape_.shard_begin(rank));
  }
}

// As they came, the other way round: each rank's shard through its own grad slot.
void HostExchange::read_from_peers(uint32_t chunk, float* values) {
  const uint32_t mine = session_.local_rank();
  std::vector<float> masters(shape_.shard_numel());
  resident_->read_masters(chunk, masters.data());
  for (const shm::LoadPart part : shm::load_parts(shape_.type)) {
    shm::put_part(masters.data(), shape_.shard_numel(), part, session_.peer_grad_slot(chunk));
    hold();
    for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
      const std::byte* const slot =
          rank == mine ? session_.peer_grad_slot(chunk) : session_.peer_grad(chunk, rank);
      shm::take_part(slot, shape_.shard_end(rank) - shape_.shard_begin(rank), part,
                     values + shape_.shard_begin(rank));
    }
    hold();
  }
  std::memset(session_.peer_grad_slot(chunk), 0, shape_.chunk_bytes());
}

// ---- a step ----

double HostExchange::mean_metric(uint32_t step, double) {
  return value_or_throw(session_.wait_committed(step)).metric_mean;
}

void HostExchange::synchronize(uint32_t step) {
  publisher_.drain();
  throw_if_error(session_.wait_finished(step));
  throw_if_error(session_.wait_passed(barrier_));  // of chunks of home gpu, on all ranks
  wait_for(Stream::kCompute);
}

}  // namespace elixir
