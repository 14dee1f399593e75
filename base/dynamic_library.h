#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace elixir {

// Where a shared library is looked for that a program loads only when it needs it.
struct LibrarySearch {
  std::string file_name;   // "libelixir_cuda.so"
  std::string variable;    // an environment variable that names the file itself
  std::string build_path;  // where the build leaves it; "": nowhere
  std::string remedy;      // the end of the message when it is not found
};

// The files that are tried, in this order: the one that the environment variable names (then no
// other), beside the running program, in ../lib of it, beside this code (library_folder()),
// build_path, and the bare name, which the system's loader looks up.
std::vector<std::string> library_candidates(const LibrarySearch& search);

// A shared library loaded at run time. It stays loaded until the process ends: what it registered
// elsewhere points into it.
class DynamicLibrary {
 public:
  // Loads the first candidate that exists. kUnavailable when there is none (the message lists where
  // was looked), or when one exists and cannot be loaded (with the loader's own text).
  static Result<DynamicLibrary> load(const LibrarySearch& search);

  // A function that the library exports under a C name. kVersionMismatch when it has none.
  template <typename Function>
  Result<Function*> function(const char* name) const {
    const Result<void*> found = symbol(name);
    if (!found.ok()) return found.status();
    return reinterpret_cast<Function*>(*found);
  }

  const std::string& path() const { return path_; }  // of the file that was loaded

 private:
  DynamicLibrary(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  Result<void*> symbol(const char* name) const;

  void* handle_;
  std::string path_;
};

}  // namespace elixir
