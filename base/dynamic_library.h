#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace elixir {

// Says where to find a shared library that a program loads only when it needs it.
struct LibrarySearch {
  std::string file_name;  // "libelixir_cuda.so"
  std::string variable;   // an environment variable that names the file itself
  std::vector<std::string> lib_subfolders = {};  // of ../lib, where it is looked for before ../lib
  std::string build_path;                        // the build's own file; "": none
  std::string remedy;                            // the end of the message if no file is found
};

// The files to try, in this order. If the environment variable names a file, only that one is
// tried. Otherwise: beside the running program, in the subfolders of its ../lib, in ../lib, beside
// this code (library_folder()), build_path, and the bare name, which the system's loader looks up.
std::vector<std::string> library_candidates(const LibrarySearch& search);

// A shared library loaded at run time. It stays loaded until the process ends, because things that
// it registered elsewhere point into it.
class DynamicLibrary {
 public:
  // Loads the first candidate that exists. kUnavailable if there is none (the message lists the
  // places), or if one exists and cannot be loaded (with the loader's own text).
  static Result<DynamicLibrary> load(const LibrarySearch& search);

  // A function that the library exports under a C name. kVersionMismatch when it has none.
  template <typename Function>
  Result<Function*> function(const char* name) const {
    const Result<void*> found = symbol(name);
    if (!found.ok()) return found.status();
    return reinterpret_cast<Function*>(*found);
  }

  const std::string& path() const { return path_; }  // the file that was loaded

 private:
  DynamicLibrary(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  Result<void*> symbol(const char* name) const;

  void* handle_;
  std::string path_;
};

}  // namespace elixir
