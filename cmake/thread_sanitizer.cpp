// Linked into every program of a thread-sanitizer build: libzmq is not built with the sanitizer, so
// it cannot see the library's own ordering. Visible, since the sanitizer's runtime is a shared
// library.

#include <unistd.h>

#include <cstddef>

extern "C" [[gnu::visibility("default")]] const char* __tsan_default_suppressions() {
  return "race:libzmq.so\n";
}

// Of the sanitizer's runtime.
extern "C" void __sanitizer_symbolize_pc(void* pc, const char* format, char* text, size_t bytes);

// A suppression looks up names, and the first look reads the program's files and closes them. That
// close() is elixird's own (daemon/zmq_gate.cpp): it saw a race of the same kind there, inside of
// the report of the first, and the runtime waited for itself for ever. Here there is one thread.
// What close() makes at its first call must not come from the memory that such a look has.
[[gnu::constructor]] static void read_names_at_once() {
  ::close(-1);
  char text[1] = {};
  __sanitizer_symbolize_pc(__builtin_return_address(0), "%f", text, sizeof text);
}
