#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace elixir::optim {

// Sets rounding to nearest and keeps denormals, for as long as it lives. A library loaded beside us
// may have set the thread otherwise (-ffast-math does), and bits must not depend on that.
class IeeeModes {
 public:
#if defined(__x86_64__)
  IeeeModes() : before_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~IeeeModes() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned kDefault = 0x1f80;  // all exceptions masked, no FTZ, no DAZ, nearest
  const unsigned before_;
#else
  IeeeModes() {}
  ~IeeeModes() {}
#endif
  IeeeModes(const IeeeModes&) = delete;
  IeeeModes& operator=(const IeeeModes&) = delete;
};

}  // namespace elixir::optim
