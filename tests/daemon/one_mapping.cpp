#include "tests/daemon/one_mapping.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

namespace elixir::testing {
namespace {

struct Mapping {
  std::byte* start = nullptr;
  size_t bytes = 0;
  std::string name;     // "/memfd:elixir-params (deleted)"
  uint32_t number = 0;  // counts up
};

std::mutex mutex;
std::map<std::pair<dev_t, ino_t>, Mapping>& mappings() {
  static std::map<std::pair<dev_t, ino_t>, Mapping> all;
  return all;
}

std::atomic<uint32_t> packets = 0, messages = 0;
std::atomic<int> messages_order = 0;
std::atomic<uint32_t> again = 0;

}  // namespace

MessagesOrder::MessagesOrder() { messages_order.fetch_add(1, std::memory_order_relaxed); }
MessagesOrder::~MessagesOrder() { messages_order.fetch_sub(1, std::memory_order_relaxed); }

std::byte* newest_mapping(const std::string& name) {
  const std::lock_guard lock(mutex);
  const Mapping* newest = nullptr;
  for (const auto& [file, mapping] : mappings()) {
    const bool named = mapping.name.find("memfd:" + name) != std::string::npos;
    if (named && (newest == nullptr || mapping.number > newest->number)) newest = &mapping;
  }
  return newest == nullptr ? nullptr : newest->start;
}

uint32_t mapped_again() { return again.load(std::memory_order_relaxed); }

extern "C" {

void* __real_mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_munmap(void* address, size_t bytes);
ssize_t __real_sendmsg(int socket, const msghdr* message, int flags);
int __real_zmq_send(void* socket, const void* bytes, size_t n_bytes, int flags);
int __real_zmq_msg_recv(zmq_msg_t* message, void* socket, int flags);

// What is mapped already, writable, is mapped there again.
void* __wrap_mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) {
  struct stat info {};
  if (fd < 0 || (flags & MAP_SHARED) == 0 || offset != 0 || ::fstat(fd, &info) != 0) {
    return __real_mmap(address, bytes, protection, flags, fd, offset);
  }
  const std::lock_guard lock(mutex);
  Mapping& mapping = mappings()[{info.st_dev, info.st_ino}];
  if (mapping.start != nullptr && mapping.bytes >= bytes) {
    packets.load(std::memory_order_acquire);
    again.fetch_add(1, std::memory_order_relaxed);
    return mapping.start;
  }
  void* const start = __real_mmap(address, bytes, protection, flags, fd, offset);
  if (start == MAP_FAILED) return start;
  char name[64] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  [[maybe_unused]] const ssize_t length = ::readlink(link.c_str(), name, sizeof name - 1);
  mapping = {static_cast<std::byte*>(start), bytes, name, static_cast<uint32_t>(mappings().size())};
  return start;
}

// Nothing of it: another may have it, and the address must not be used for something else.
int __wrap_munmap(void* address, size_t bytes) {
  {
    const std::lock_guard lock(mutex);
    for (const auto& [file, mapping] : mappings()) {
      if (mapping.start == address) return 0;
    }
  }
  return __real_munmap(address, bytes);
}

ssize_t __wrap_sendmsg(int socket, const msghdr* message, int flags) {
  packets.fetch_add(1, std::memory_order_release);
  return __real_sendmsg(socket, message, flags);
}

int __wrap_zmq_send(void* socket, const void* bytes, size_t n_bytes, int flags) {
  if (messages_order.load(std::memory_order_relaxed) > 0) {
    messages.fetch_add(1, std::memory_order_release);
  }
  return __real_zmq_send(socket, bytes, n_bytes, flags);
}

int __wrap_zmq_msg_recv(zmq_msg_t* message, void* socket, int flags) {
  const int received = __real_zmq_msg_recv(message, socket, flags);
  if (messages_order.load(std::memory_order_relaxed) > 0) {
    messages.load(std::memory_order_acquire);
  }
  return received;
}

#if defined(__SANITIZE_THREAD__)
[[gnu::visibility("default")]] const char* __tsan_default_options() {
  return "io_sync=0:history_size=4";
}
#endif

}  // extern "C"

}  // namespace elixir::testing
