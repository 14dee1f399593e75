#include "tests/daemon/fake_trainer.h"

#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "optim_cpu/master.h"
#include "shm/futex.h"
#include "shm/load_part.h"

namespace elixir::testing {

struct FakeTrainer::Dealer {
  void* context = zmq_ctx_new();
  void* socket = zmq_socket(context, ZMQ_DEALER);
  Dealer() {
    const int linger_ms = 0;
    zmq_setsockopt(socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
  }
  ~Dealer() {
    zmq_close(socket);
    zmq_ctx_term(context);
  }
};

namespace {

Status map(UniqueFd fd, uint64_t bytes, shm::Access access, std::shared_ptr<shm::Segment>* into) {
  Result<shm::Segment> segment = shm::Segment::map(std::move(fd), bytes, access);
  if (segment.ok()) *into = std::make_shared<shm::Segment>(std::move(*segment));
  return segment.status();
}

}  // namespace

optim::AdamStep adam_step(const shm::StepRecord& record, uint32_t group, uint64_t updates,
                          double grad_scale) {
  const shm::ParamGroupRecord& of = record.groups[group - 1];
  const optim::AdamOptions options{.lr = of.lr,
                                   .beta1 = of.hyper[kBeta1],
                                   .beta2 = of.hyper[kBeta2],
                                   .eps = of.hyper[kEps],
                                   .weight_decay = of.weight_decay,
                                   .rule = static_cast<UpdateRule>(record.rule)};
  return optim::make_adam_step(options, updates, grad_scale);
}

FakeTrainer::FakeTrainer(const Options& options) : options_(options) {}
FakeTrainer::~FakeTrainer() = default;

Result<std::unique_ptr<FakeTrainer>> FakeTrainer::ask(const Options& options) {
  std::unique_ptr<FakeTrainer> trainer(new FakeTrainer(options));
  trainer->dealer_ = std::make_unique<Dealer>();
  Result<UniqueFd> socket = shm::connect_attach(options.folder.attach_socket());
  if (!socket.ok()) return socket.status();
  trainer->socket_ = std::move(*socket);
  const std::vector<std::byte> table = shm::encode_table(options.places);
  const Result<UniqueFd> table_fd = shm::write_table_fd(table);
  if (!table_fd.ok()) return table_fd.status();
  shm::AttachRequest request{};
  shm::set_text(request.job, options.job);
  request.shape = options.shape;
  request.rules = {options.accumulate, options.immediate, options.norms, options.early};
  request.position.rank = options.rank;
  request.position.local_rank = options.rank - options.first_rank;
  request.position.local_ranks =
      options.local_ranks != 0 ? options.local_ranks : options.shape.ranks;
  request.table = {table.size(), shm::table_xxh64(table)};
  request.wishes.workers = options.workers;
  request.wishes.pins_params = options.pins_params;
  const int fds[] = {table_fd->get()};
  ELIXIR_RETURN_IF_ERROR(shm::send_message(trainer->socket_.get(), request, fds));
  return trainer;
}

Result<std::unique_ptr<FakeTrainer>> FakeTrainer::attach(const Options& options) {
  Result<std::unique_ptr<FakeTrainer>> trainer = ask(options);
  if (!trainer.ok()) return trainer;
  const Result<shm::Packet> packet = shm::receive_packet((*trainer)->socket_.get(), kDeadlineMs);
  if (!packet.ok()) return packet.status();
  ELIXIR_RETURN_IF_ERROR((*trainer)->finish_attach(*packet));
  return trainer;
}

Result<std::unique_ptr<FakeTrainer>> FakeTrainer::watch(const Options& options, Watched watched) {
  std::unique_ptr<FakeTrainer> trainer(new FakeTrainer(options));
  const shm::Shape& shape = options.shape;
  const auto read_only = [](UniqueFd& fd, uint64_t bytes, Memory* into) {
    return map(std::move(fd), bytes, shm::Access::kReadOnly, into);
  };
  ELIXIR_RETURN_IF_ERROR(read_only(watched.control, shape.control_bytes(), &trainer->control_));
  const auto add = [&](std::vector<UniqueFd>& fds, uint64_t bytes, std::vector<Memory>& to) {
    for (UniqueFd& fd : fds) ELIXIR_RETURN_IF_ERROR(read_only(fd, bytes, &to.emplace_back()));
    return Status();
  };
  ELIXIR_RETURN_IF_ERROR(add(watched.params, shape.params_bytes(), trainer->params_));
  ELIXIR_RETURN_IF_ERROR(add(watched.states, shape.state_bytes(), trainer->states_));
  ELIXIR_RETURN_IF_ERROR(add(watched.swings, shape.swing_bytes(), trainer->swings_));
  return trainer;
}

Status FakeTrainer::finish_attach(const shm::Packet& packet) {
  if (packet.end_of_file()) return error(Code::kUnavailable, "end of file instead of a reply");
  if (const auto refusal = shm::decode_message<shm::Refusal>(packet.bytes); refusal.ok()) {
    return Status(static_cast<Code>(refusal->code), std::string(shm::get_text(refusal->text)));
  }
  const Result<shm::AttachReply> reply = shm::decode_message<shm::AttachReply>(packet.bytes);
  if (!reply.ok()) return reply.status();
  if (packet.fds.size() != 3) {
    return error(Code::kProtocol, "{} descriptors", packet.fds.size());
  }
  session_id_ = reply->session_id;
  token_ = reply->token;
  const shm::Shape& shape = options_.shape;
  const auto copy = [&packet](size_t i) { return UniqueFd(::dup(packet.fds[i].get())); };
  constexpr auto kReadWrite = shm::Access::kReadWrite;
  ELIXIR_RETURN_IF_ERROR(map(copy(0), shape.control_bytes(), kReadWrite, &control_));
  ELIXIR_RETURN_IF_ERROR(map(copy(1), shape.grads_bytes(), kReadWrite, &grads_));
  if (options_.keeps_sums) sums_ = copy(2);
  if (shape.n_swing_chunks > 0) {
    ELIXIR_RETURN_IF_ERROR(map(copy(2), shape.sums_bytes(), shm::Access::kReadOnly, &own_sums_));
    find_swing_slots();
  }
  if (zmq_connect(dealer_->socket, options_.folder.control_endpoint().c_str()) != 0) {
    return error(Code::kUnavailable, "zmq_connect");
  }
  return Status();
}

Status FakeTrainer::await_peers() {
  Result<shm::Packet> packet = shm::receive_packet(socket_.get(), kDeadlineMs);
  if (!packet.ok()) return packet.status();
  const Result<shm::RanksReady> ready = shm::decode_message<shm::RanksReady>(packet->bytes);
  if (!ready.ok()) return ready.status();
  const shm::Shape& shape = options_.shape;
  const size_t fds_a_rank = shm::descriptors_of_rank(shape);
  if (packet->fds.size() != ready->local_ranks * fds_a_rank) {
    return error(Code::kProtocol, "descriptors");
  }
  for (size_t first = 0; first < packet->fds.size(); first += fds_a_rank) {
    const bool own = first / fds_a_rank == options_.rank - options_.first_rank;
    const bool pins = options_.pins_params == 1 && (own || shape.exchange == shm::Exchange::kHost);
    const auto add = [&](size_t i, uint64_t bytes, bool writes, std::vector<Memory>& to) {
      return map(std::move(packet->fds[first + i]), bytes,
                 writes ? shm::Access::kReadWrite : shm::Access::kReadOnly, &to.emplace_back());
    };
    ELIXIR_RETURN_IF_ERROR(add(0, shape.params_bytes(), pins, params_));
    ELIXIR_RETURN_IF_ERROR(add(1, shape.state_bytes(), false, states_));
    if (shape.n_swing_chunks == 0) continue;
    ELIXIR_RETURN_IF_ERROR(add(2, shape.swing_bytes(), own, swings_));
    if (shape.exchange != shm::Exchange::kHost) continue;
    ELIXIR_RETURN_IF_ERROR(add(3, shape.grads_bytes(), false, all_grads_));
  }
  return Status();
}

void FakeTrainer::find_swing_slots() {
  for (uint32_t lane = 0; lane < options_.shape.n_swing_lanes; ++lane) {
    swing_spare_.push_back(options_.shape.first_swing_spare(lane));
  }
}

template <typename Message>
Status FakeTrainer::request(Message message) {
  const uint64_t id = next_request_++;
  send(message, id);
  if (deliver_) return Status();
  const Result<std::vector<std::byte>> bytes = receive();
  if (!bytes.ok()) return bytes.status();
  const Result<shm::Ack> ack = shm::decode_message<shm::Ack>(*bytes);
  if (!ack.ok()) return ack.status();
  if (ack->header.request_id != id) return error(Code::kProtocol, "reply to another request");
  return Status();
}

Status FakeTrainer::hello() {
  shm::Hello message{};
  message.session_id = session_id_;
  message.token = token_;
  return request(message);
}

Status FakeTrainer::load(std::span<const std::vector<float>> values) {
  const shm::Shape& shape = options_.shape;
  for (uint32_t chunk = 0; chunk < shape.n_chunks; ++chunk) {
    uint32_t number = 0;
    for (const shm::LoadPart part : shm::load_parts(shape.type)) {
      shm::put_part(values[chunk].data(), shape.grad_slot_numel(), part,
                    grads_->data() + shape.grad_slot_offset(chunk));
      shm::LoadChunk message{};
      message.chunk = chunk;
      message.part = static_cast<uint32_t>(part);
      send(message);
      ELIXIR_RETURN_IF_ERROR(wait_word(chunk_record(chunk).loads_taken, chunk_record(chunk).waiters,
                                       ++number, "loads_taken"));
    }
  }
  return Status();
}

Status FakeTrainer::await_ready() { return request(shm::AwaitReady{}); }

void FakeTrainer::fill_grad_slot(uint32_t chunk, const void* grads) {
  const shm::Shape& shape = options_.shape;
  std::memcpy(grads_->data() + shape.grad_slot_offset(chunk), grads,
              shape.grad_slot_numel() * element_bytes(shape.type));
}

void FakeTrainer::write_grads(uint32_t chunk, const void* grads, uint32_t step,
                              uint32_t micro_step) {
  fill_grad_slot(chunk, grads);
  write_groups(chunk, step);
  shm::GradRecord& record = grad_record(chunk);
  record.grad_step.store(step, std::memory_order_relaxed);
  record.grad_micro_step.store(micro_step, std::memory_order_relaxed);
  const uint32_t before = record.grad_publication.load(std::memory_order_relaxed).revision;
  const bool to_sum = options_.accumulate > 1 || micro_step > 1;
  record.grad_publication.store(
      {.revision = before + 1, .discards = discards_, .to_sum = to_sum ? 1u : 0u},
      std::memory_order_release);
  header().publications.fetch_add(1, std::memory_order_release);
}

void FakeTrainer::write_groups(uint32_t chunk, uint32_t step) {
  for (uint32_t i = 0; i < options_.shape.n_parameters; ++i) {
    if (!shm::chunks_of(options_.places[i], options_.shape).contains(chunk)) continue;
    const uint8_t group = options_.grad_group ? options_.grad_group(i, step) : 1;
    grad_groups(step)[i].store(group, std::memory_order_relaxed);
  }
}

void FakeTrainer::write_request(uint32_t chunk) {
  shm::GradRecord& record = grad_record(chunk);
  shm::GradPublication publication = record.grad_publication.load();
  publication.to_sum = 1;
  record.grad_publication.store(publication, std::memory_order_release);
  header().publications.fetch_add(1, std::memory_order_release);
}

void FakeTrainer::request_sum(uint32_t chunk) {
  write_request(chunk);
  ring_grads(chunk);
}

void FakeTrainer::ring_grads(uint32_t chunk) {
  shm::GradsPublished message{};
  message.chunk = chunk;
  send(message);
}

Status FakeTrainer::wait_taken(uint32_t chunk) {
  shm::ChunkRecord& record = chunk_record(chunk);
  return wait_word(record.grad_taken, record.waiters,
                   grad_record(chunk).grad_publication.load().revision, "grad_taken");
}

Status FakeTrainer::wait_param(uint32_t chunk, uint32_t step) {
  const shm::Waiter waits(header().param_waiters);
  shm::ChunkRecord& record = chunk_record(chunk);
  if (param_step(chunk) >= step) return Status();
  return wait_word(record.param_step, record.waiters, step, "param_step");
}

void FakeTrainer::open(const shm::StepRecord& record) {
  write_record(record);
  header().open_step.store(record.step, std::memory_order_release);
}

void FakeTrainer::post_silently(const shm::StepRecord& record) {
  write_record(record);
  header().posted_step.store(record.step, std::memory_order_release);
  discards_ = 0;
}

void FakeTrainer::post(const shm::StepRecord& record) {
  post_silently(record);
  shm::StepPosted message{};
  message.step = record.step;
  send(message);
}

Status FakeTrainer::wait_finished(uint32_t step) {
  return wait_word(header().finished_step, header().waiters, step, "finished_step");
}

Status FakeTrainer::wait_word(std::atomic<uint32_t>& word, std::atomic<uint32_t>& waiters,
                              uint32_t value, const char* what) {
  const shm::Waiter waits(waiters);
  const int64_t start_ns = monotonic_ns();
  for (;;) {
    const uint32_t have = word.load(std::memory_order_acquire);
    if (have >= value) return Status();
    if (const uint32_t fault = header().fault.load(std::memory_order_acquire); fault != 0) {
      return error(Code::kUnavailable, "fault {} of rank {}", fault, header().fault_rank.load());
    }
    if (go_on_) {
      if (go_on_()) continue;
      return error(Code::kTimedOut, "{} is {}, not {}, and nothing is under way", what, have,
                   value);
    }
    if (seconds_since(start_ns) * 1000 > kDeadlineMs) {
      return error(Code::kTimedOut, "{} is {}, not {}", what, have, value);
    }
    shm::futex_wait(word, have, 10'000'000);
  }
}

// Where it lies after the last step that is finished.
uint32_t FakeTrainer::slot(uint32_t chunk) const {
  if (options_.shape.frozen(chunk)) return options_.shape.first_slot(chunk);
  return chunk_record(chunk).slot.load();
}

const std::byte* FakeTrainer::param_of(uint32_t local, uint32_t chunk) const {
  const shm::Shape& shape = options_.shape;
  const uint32_t at = slot(chunk);
  return shape.in_swing_memory(at) ? swings_[local]->data() + shape.swing_slot_offset(at)
                                   : params_[local]->data() + shape.param_slot_offset(at);
}

const std::byte* FakeTrainer::master_of(uint32_t local, uint32_t chunk) const {
  const shm::Shape& shape = options_.shape;
  if (shape.swings(chunk)) return param_of(local, chunk) + shape.image_master_offset();
  return states_[local]->data() + shape.master_offset() +
         slot(chunk) * shape.shard_numel() * master_bytes(shape.type);
}

const float* FakeTrainer::moment_of(uint32_t moment, uint32_t local, uint32_t chunk) const {
  const shm::Shape& shape = options_.shape;
  const std::byte* const first = shape.swings(chunk)
                                     ? param_of(local, chunk) + shape.image_moment_offset(moment)
                                     : states_[local]->data() + shape.moment_offset(moment) +
                                           slot(chunk) * shape.shard_numel() * sizeof(float);
  return reinterpret_cast<const float*>(first);
}

std::vector<float> FakeTrainer::masters(uint32_t chunk) const {
  const shm::Shape& shape = options_.shape;
  std::vector<float> values(shape.chunk_numel);
  for (uint32_t local = 0; local < params_.size(); ++local) {
    const uint32_t rank = options_.first_rank + local;
    optim::read_master(shape.type, param_of(local, chunk), master_of(local, chunk),
                       shape.shard_end(rank) - shape.shard_begin(rank),
                       values.data() + shape.shard_begin(rank));
  }
  return values;
}

std::vector<float> FakeTrainer::moment(uint32_t moment, uint32_t chunk) const {
  const shm::Shape& shape = options_.shape;
  std::vector<float> values(shape.chunk_numel);
  for (uint32_t local = 0; local < states_.size(); ++local) {
    const uint32_t rank = options_.first_rank + local;
    const uint64_t begin = shape.shard_begin(rank);
    std::memcpy(values.data() + begin, moment_of(moment, local, chunk),
                (shape.shard_end(rank) - begin) * sizeof(float));
  }
  return values;
}

uint32_t FakeTrainer::param_step(uint32_t chunk) const {
  return std::max(chunk_record(chunk).param_step.load(std::memory_order_acquire),
                  header().skipped_through.load(std::memory_order_acquire));
}

std::vector<std::byte> FakeTrainer::gather(uint32_t chunk) const {
  const shm::Shape& shape = options_.shape;
  std::vector<std::byte> out(shape.chunk_bytes());
  for (uint32_t local = 0; local < params_.size(); ++local) {
    const uint32_t rank = options_.first_rank + local;
    const uint64_t begin = shape.shard_begin(rank) * element_bytes(shape.type);
    const uint64_t end = shape.shard_end(rank) * element_bytes(shape.type);
    std::memcpy(out.data() + begin, param_of(local, chunk), end - begin);
  }
  return out;
}

void FakeTrainer::keep_memory_from_children() {
  control_->keep_from_children();
  grads_->keep_from_children();
  for (const auto& params : params_) params->keep_from_children();
  for (const auto& state : states_) state->keep_from_children();
  for (const auto& swing : swings_) swing->keep_from_children();
  for (const auto& grads : all_grads_) grads->keep_from_children();
}

void FakeTrainer::ring_swing(uint32_t chunk) {
  shm::SwingUpdated message{};
  message.chunk = chunk;
  send(message);
}

Status FakeTrainer::wait_swing(uint32_t chunk, uint32_t step) {
  shm::ChunkRecord& record = chunk_record(chunk);
  return wait_word(record.swing_step, record.waiters, step, "swing_step");
}

Status FakeTrainer::swing(uint32_t step, const SwingPause& pause) {
  const shm::Shape& shape = options_.shape;
  ELIXIR_RETURN_IF_ERROR(wait_word(header().committed_step, header().waiters, step, "committed"));
  if (step_result(step).skipped != 0) return Status();
  const auto at = [&](uint32_t chunk, SwingPoint point) {
    if (pause) pause(chunk, point);
  };
  std::vector<std::byte> image(shape.image_bytes());  // what a device has
  for (uint32_t chunk = shape.first_swing(); chunk < shape.n_chunks; ++chunk) {
    ELIXIR_RETURN_IF_ERROR(wait_swing(chunk, step));
    const uint32_t from = slot(chunk);
    std::memcpy(image.data(), swing_memory() + shape.swing_slot_offset(from), image.size());
    at(chunk, SwingPoint::kUp);
    update_image(chunk, step, image.data());
    at(chunk, SwingPoint::kUpdated);
    uint32_t& spare = swing_spare_[shape.swing_lane(chunk)];
    std::memcpy(swing_memory() + shape.swing_slot_offset(spare), image.data(), image.size());
    at(chunk, SwingPoint::kDown);
    swing_record(chunk).slot.store(spare, std::memory_order_relaxed);
    at(chunk, SwingPoint::kSlotStored);
    swing_record(chunk).step.store(step, std::memory_order_release);
    at(chunk, SwingPoint::kStepStored);
    spare = from;
    ring_swing(chunk);
    at(chunk, SwingPoint::kRung);
  }
  return Status();
}

// This rank's shard, with what elixird says of its parameters.
void FakeTrainer::update_image(uint32_t chunk, uint32_t step, std::byte* image) const {
  const shm::Shape& shape = options_.shape;
  const auto* const told = in_control<shm::SwingParameter>(shape.swing_parameters_offset());
  const shm::StepRecord& record = step_record(step);
  const bool of_sums = chunk_record(chunk).swing_sums.load() != 0;
  const uint64_t shard_begin = shape.shard_begin(options_.rank);
  for (uint32_t i = 0; i < shape.n_parameters; ++i) {
    if (!shm::chunks_of(options_.places[i], shape).contains(chunk)) continue;
    const shm::ParameterPart part = shm::part_in(options_.places[i], shape, chunk);
    const uint64_t begin = std::max(part.offset, shard_begin);
    const uint64_t end = std::min(part.offset + part.numel, shape.shard_end(options_.rank));
    const uint32_t group = told[i].group.load();
    if (begin >= end || group == shm::kNoGradient) continue;
    const optim::AdamStep constants =
        adam_step(record, group, told[i].updates.load(), step_result(step).grad_scale);
    const uint64_t first = begin - shard_begin;
    std::vector<const void*> grads;
    const auto add = [&](const shm::Segment& segment, uint64_t offset) {
      grads.push_back(segment.data() + shape.grad_slot_offset(chunk) +
                      offset * element_bytes(shape.type));
    };
    optim::UpdateSpan span;
    span.type = shape.type;
    if (of_sums) {
      span.grad_sum =
          reinterpret_cast<const float*>(own_sums_->data()) + chunk * shape.shard_numel() + first;
    } else if (shape.exchange == shm::Exchange::kHost) {
      for (const auto& rank : all_grads_) add(*rank, begin);
    } else {
      add(*grads_, first);
    }
    span.n_grads = static_cast<int>(grads.size());
    span.grads = grads.data();
    span.param = image + first * element_bytes(shape.type);
    span.master = image + shape.image_master_offset() + first * master_bytes(shape.type);
    for (uint32_t moment = 0; moment < shape.n_moments; ++moment) {
      span.moments[moment] =
          reinterpret_cast<float*>(image + shape.image_moment_offset(moment)) + first;
    }
    span.numel = end - begin;
    optim::adam_update(optim::Isa::kScalar, span, constants);
  }
}

void FakeTrainer::detach() {
  [[maybe_unused]] const Status sent = shm::send_message(socket_.get(), shm::Detach{});
  socket_.reset();
}

void FakeTrainer::die() { socket_.reset(); }

Result<shm::SessionFault> FakeTrainer::wait_session_fault() {
  const Result<shm::Packet> packet = shm::receive_packet(socket_.get(), kDeadlineMs);
  if (!packet.ok()) return packet.status();
  if (packet->end_of_file()) return error(Code::kUnavailable, "end of file without a fault");
  return shm::decode_message<shm::SessionFault>(packet->bytes);
}

Status FakeTrainer::wait_end_of_file() {
  const Result<shm::Packet> packet = shm::receive_packet(socket_.get(), kDeadlineMs);
  if (!packet.ok()) return packet.status();
  return packet->end_of_file() ? Status() : error(Code::kProtocol, "a packet, not end of file");
}

void FakeTrainer::send_raw(std::span<const std::byte> bytes) {
  if (deliver_) return deliver_(bytes);
  zmq_send(dealer_->socket, bytes.data(), bytes.size(), ZMQ_DONTWAIT);
}

Result<std::vector<std::byte>> FakeTrainer::receive(int timeout_ms) {
  zmq_setsockopt(dealer_->socket, ZMQ_RCVTIMEO, &timeout_ms, sizeof timeout_ms);
  std::vector<std::byte> bytes(shm::kMaxMessageBytes);
  const int got = zmq_recv(dealer_->socket, bytes.data(), bytes.size(), 0);
  if (got < 0) return error(Code::kTimedOut, "no control message within {} ms", timeout_ms);
  bytes.resize(static_cast<size_t>(got));
  return bytes;
}

}  // namespace elixir::testing
