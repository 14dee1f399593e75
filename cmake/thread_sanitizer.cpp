// Linked into every program of a thread-sanitizer build: libzmq is not built with the sanitizer, so
// it cannot see the library's own ordering. Visible, since the sanitizer's runtime is a shared
// library.
extern "C" [[gnu::visibility("default")]] const char* __tsan_default_suppressions() {
  return "race:libzmq.so\n";
}
