#include "tests/daemon/held_fill.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <future>

#include "base/check.h"
#include "tests/support/patience.h"

namespace elixir::testing {
namespace {

// For this thread and its children alone. The descriptor that the notifications arrive at, or -1.
int ask_before(const HeldCall& call) {
  const auto low_half = [](int argument) {
    return static_cast<uint32_t>(offsetof(seccomp_data, args) +
                                 static_cast<size_t>(argument) * sizeof(uint64_t));
  };
  // Of madvise the advice counts, too.
  const bool fills = call.number == SYS_madvise;
  const int second = fills ? 2 : call.length_argument;
  const uint64_t wanted = fills ? MADV_POPULATE_WRITE : call.bytes;
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call.number), 0, 5),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, low_half(call.length_argument)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call.bytes), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, low_half(second)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(wanted), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {static_cast<unsigned short>(std::size(program)), program};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return static_cast<int>(
      ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter));
}

}  // namespace

HeldCall HeldCall::filling(uint64_t piece_bytes) {
  return {.number = SYS_madvise, .length_argument = 1, .bytes = piece_bytes};
}

HeldCall HeldCall::reading_table(uint64_t table_bytes) {
  return {.number = SYS_pread64, .length_argument = 2, .bytes = table_bytes};
}

HeldFill::HeldFill(const HeldCall& call, std::vector<std::string> arguments) {
  ELIXIR_CHECK(::pipe(stop_fds_) == 0, "pipe");
  std::promise<void> started;
  parent_ = std::thread([&, call, arguments = std::move(arguments)] {
    listener_ = ask_before(call);
    if (listener_ >= 0) daemon_ = std::make_unique<DaemonProcess>(arguments);
    const int stop_fd = stop_fds_[0];
    started.set_value();
    char none;
    [[maybe_unused]] const ssize_t got = ::read(stop_fd, &none, 1);
  });
  started.get_future().wait();
}

HeldFill::~HeldFill() {
  if (listener_ >= 0) ::close(listener_);
  daemon_.reset();
  ::close(stop_fds_[1]);
  parent_.join();
  ::close(stop_fds_[0]);
}

bool HeldFill::await() {
  pollfd entry{listener_, POLLIN, 0};
  if (::poll(&entry, 1, test::kPatienceMs) != 1) return false;
  seccomp_notif notification{};
  if (::ioctl(listener_, SECCOMP_IOCTL_NOTIF_RECV, &notification) != 0) return false;
  held_id_ = notification.id;
  return true;
}

void HeldFill::answer(int error) {
  seccomp_notif_resp response{};
  response.id = held_id_;
  response.error = -error;
  if (error == 0) response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  const int sent = ::ioctl(listener_, SECCOMP_IOCTL_NOTIF_SEND, &response);
  ELIXIR_CHECK(sent == 0, "the answer to a held system call: errno {}", errno);
}

}  // namespace elixir::testing
