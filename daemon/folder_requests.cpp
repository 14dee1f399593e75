// Requests for folders: what they bring is read by a background thread, then the job hears of them.
// And what jobs ask of the event loop for them: threads, and how much memory copies may take.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "daemon/daemon.h"
#include "daemon/service_notify.h"

namespace elixir::daemon {
namespace {

constexpr uint64_t kMaxLoadDetailsBytes = 256ull << 20;  // of shapes alone

// Asks no file system, which may never answer.
Status check_folder(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && (flags & O_DIRECTORY) != 0
             ? Status()
             : error(Code::kProtocol, "a descriptor that is not a folder");
}

// Whose bytes can be read without a wait.
Status check_memfd(int fd) {
  return ::fcntl(fd, F_GET_SEALS) >= 0 ? Status()
                                       : error(Code::kProtocol, "a descriptor that is not a memfd");
}

}  // namespace

void Daemon::read_session(Session& rank, Result<shm::Packet> packet) {
  if (!packet.ok()) return rank.job->end_session(rank, packet.status());
  if (packet->end_of_file()) return rank.job->lose_rank(rank);
  const Result<shm::MessageHeader> header = shm::decode_header(packet->bytes);
  if (!header.ok()) return rank.job->end_session(rank, header.status());
  switch (static_cast<shm::MessageType>(header->type)) {
    case shm::MessageType::kSaveFolder:
    case shm::MessageType::kLoadFolder: {
      const Status status = read_request(rank, std::move(*packet));
      return status.ok() ? void() : rank.job->end_session(rank, status);
    }
    default: {
      const Result<shm::Detach> message = shm::decode_message<shm::Detach>(packet->bytes);
      return message.ok() ? rank.job->detach(rank) : rank.job->end_session(rank, message.status());
    }
  }
}

// kProtocol: what no correct trainer sends. Refusals go another way.
Status Daemon::read_request(Session& rank, shm::Packet packet) {
  const bool save = packet.bytes.size() == sizeof(shm::SaveFolder);
  if (save) {
    const Result<shm::SaveFolder> message = shm::decode_message<shm::SaveFolder>(packet.bytes);
    if (!message.ok()) return message.status();
    ELIXIR_RETURN_IF_ERROR(count_request(rank, message->number, message->details_bytes));
    return read_save(rank, *message, std::move(packet));
  }
  const Result<shm::LoadFolder> message = shm::decode_message<shm::LoadFolder>(packet.bytes);
  if (!message.ok()) return message.status();
  ELIXIR_RETURN_IF_ERROR(count_request(rank, message->number, message->details_bytes));
  return read_load(rank, *message, std::move(packet));
}

Status Daemon::count_request(Session& rank, uint32_t number, uint64_t details_bytes) {
  if (rank.memory == nullptr || number != rank.requests_come + 1 ||
      number - rank.requests_over >= shm::kFolderRing) {
    return error(Code::kProtocol, "request {} for a folder, after {} of which {} are over", number,
                 rank.requests_come, rank.requests_over);
  }
  if (details_bytes > checkpoints::kMaxDetailsBytes) {
    return error(Code::kProtocol, "{} bytes of details, {} are the most", details_bytes,
                 checkpoints::kMaxDetailsBytes);
  }
  rank.requests_come = number;
  return Status();
}

Session* Daemon::session_of(uint64_t id) const {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second;
}

Status Daemon::read_save(Session& rank, const shm::SaveFolder& message, shm::Packet packet) {
  const bool has_staging = (message.flags & shm::kHasStaging) != 0;
  const bool has_lock = (message.flags & shm::kHasLock) != 0;
  const size_t n_fds = 2u + (has_staging ? 1 : 0) + (has_lock ? 1 : 0);
  if (packet.fds.size() != n_fds) {
    return error(Code::kProtocol, "SaveFolder with {} descriptors, not {}", packet.fds.size(),
                 n_fds);
  }
  ELIXIR_RETURN_IF_ERROR(check_folder(packet.fds[0].get()));
  struct Reading {
    SavePart part;
    UniqueFd details;
    Status status = no_memory_left();  // until they are read
  };
  const auto reading = std::make_shared<Reading>();
  reading->part.number = message.number;
  reading->part.details_bytes = message.details_bytes;
  size_t next = 0;
  reading->part.parent = std::move(packet.fds[next++]);
  reading->details = std::move(packet.fds[next++]);
  if (has_staging) reading->part.staging = std::move(packet.fds[next++]);
  if (has_lock) reading->part.lock = std::move(packet.fds[next++]);
  if (has_staging) ELIXIR_RETURN_IF_ERROR(check_memfd(reading->part.staging.get()));
  const uint64_t free = message.details_bytes == 0 ? 0 : free_bytes();
  const bool has_memory = has_heap_reserve();
  tables_->start(
      [reading, message, free, has_memory] {
        if (!has_memory) return;  // for JSON (daemon/status.cpp)
        if (message.details_bytes > free) {
          reading->status =
              error(Code::kResourceExhausted,
                    "{} bytes that lie in no chunk are to be saved, and {} are available for them",
                    message.details_bytes, free);
          return;
        }
        Result<checkpoints::Details> details =
            checkpoints::read_details(reading->details.get(), message.details_bytes);
        reading->status = details.status();
        if (details.ok()) reading->part.details = std::move(*details);
      },
      [this, reading, message, id = rank.id] {
        details_bytes_ -= message.details_bytes;
        Session* const session = session_of(id);
        if (session == nullptr || session->job->given_up()) return;
        contain(*session->job, [&] {
          if (reading->status.ok()) {
            session->job->heard_save(*session, message, std::move(reading->part));
          } else {
            session->job->heard_save(*session, message, reading->status);
          }
        });
      });
  details_bytes_ += message.details_bytes;
  return Status();
}

Status Daemon::read_load(Session& rank, const shm::LoadFolder& message, shm::Packet packet) {
  if (message.details_bytes > kMaxLoadDetailsBytes) {
    return error(Code::kProtocol, "{} bytes of details of a load, {} are the most",
                 message.details_bytes, kMaxLoadDetailsBytes);
  }
  if (packet.fds.size() != 2) {
    return error(Code::kProtocol, "LoadFolder with {} descriptors, not 2", packet.fds.size());
  }
  ELIXIR_RETURN_IF_ERROR(check_folder(packet.fds[0].get()));
  struct Reading {
    UniqueFd folder, details;
    Result<checkpoints::Details> read = no_memory_left();  // until they are read
  };
  const auto reading = std::make_shared<Reading>();
  reading->folder = std::move(packet.fds[0]);
  reading->details = std::move(packet.fds[1]);
  tables_->start(
      [reading, bytes = message.details_bytes, has_memory = has_heap_reserve()] {
        if (!has_memory) return;
        reading->read = checkpoints::read_details(reading->details.get(), bytes);
      },
      [this, reading, message, id = rank.id] {
        details_bytes_ -= message.details_bytes;
        Session* const session = session_of(id);
        if (session == nullptr || session->job->given_up()) return;
        contain(*session->job, [&] {
          session->job->heard_load(*session, message, std::move(reading->read),
                                   std::move(reading->folder));
        });
      });
  details_bytes_ += message.details_bytes;
  return Status();
}

// ---- what jobs ask for ----

void Daemon::start_save(Job& job, std::shared_ptr<Saving> saving) {
  saving->threads = config_.checkpoint_threads;
  saving->rate_bytes_s = config_.checkpoint_rate;
  saving->wake_fd = background_done_.get();
  folders_->start([saving] { write_save(*saving); },
                  [this, id = job.options().id] {
                    const auto found = jobs_.find(id);
                    ELIXIR_CHECK(found != jobs_.end(), "a job ended before its save");
                    Job& of = *found->second;
                    contain(of, [&of] { of.save_over(); });
                    retry_waiting();
                  });
}

void Daemon::start_restore(Job& job, std::shared_ptr<Restoring> restoring) {
  restoring->threads = std::max(config_.checkpoint_threads, 1u);
  folders_->start([restoring] { read_restore(*restoring); },
                  [this, id = job.options().id] {
                    const auto found = jobs_.find(id);
                    ELIXIR_CHECK(found != jobs_.end(), "a job ended before its load");
                    Job& of = *found->second;
                    contain(of, [&of] { of.restore_over(); });
                  });
}

uint64_t Daemon::free_bytes() { return room_for_jobs().available_bytes; }

// elixird was stopped, and nothing is left but threads whose folders do not answer: nobody can end
// them but with the process, and of a system call that no signal ends, nobody at all. Their ranks
// have been told; the folders have no name yet.
void Daemon::leave_hung_folders() {
  const auto hangs = [](const auto& entry) { return entry.second->waits_for_folder_alone(); };
  if (jobs_.empty() || !std::all_of(jobs_.begin(), jobs_.end(), hangs)) return;
  for (const auto& [id, job] : jobs_) {
    log_error("folder_hangs",
              "job='{}' folder='{}' seconds={:.0f} text='elixird was stopped and this folder does "
              "not answer: what was written there is left, and goes with the next save; look at "
              "its disk or file server'",
              job->options().name, job->folder_under_way(), seconds_since(stop_ns_));
  }
  notify_service("STOPPING=1");
  log_info("exit", "uptime_s={:.1f}", seconds_since(start_ns_));
  remove_sockets();
  lock_.reset();  // a process that a system call keeps would keep it, too
  ::_exit(0);
}

}  // namespace elixir::daemon
