#include "tests/fake_cuda/symbols.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace fake_cuda {
namespace {

using Functions = std::map<uint64_t, std::pair<uint64_t, std::string>>;  // begin, end, name

void read_table(const char* file, const Elf64_Shdr& table, const Elf64_Shdr& strings,
                Functions& functions) {
  const auto* const symbols = reinterpret_cast<const Elf64_Sym*>(file + table.sh_offset);
  for (size_t i = 0; i < table.sh_size / sizeof(Elf64_Sym); ++i) {
    const Elf64_Sym& symbol = symbols[i];
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_value == 0) continue;
    functions[symbol.st_value] = {symbol.st_value + symbol.st_size,
                                  file + strings.sh_offset + symbol.st_name};
  }
}

// dladdr knows exported functions alone, a program's own are in its symbol table.
Functions functions_of(const char* path) {
  Functions functions;
  const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
  struct stat status = {};
  if (descriptor < 0 || fstat(descriptor, &status) != 0 || status.st_size == 0) return functions;
  const auto bytes = static_cast<size_t>(status.st_size);
  void* const mapped = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
  close(descriptor);
  if (mapped == MAP_FAILED) return functions;
  const auto* const file = static_cast<const char*>(mapped);
  const auto* const header = reinterpret_cast<const Elf64_Ehdr*>(file);
  if (std::memcmp(header->e_ident, ELFMAG, SELFMAG) == 0) {
    const auto* const sections = reinterpret_cast<const Elf64_Shdr*>(file + header->e_shoff);
    for (int i = 0; i < header->e_shnum; ++i) {
      const bool is_table = sections[i].sh_type == SHT_SYMTAB || sections[i].sh_type == SHT_DYNSYM;
      if (is_table) read_table(file, sections[i], sections[sections[i].sh_link], functions);
    }
  }
  munmap(mapped, bytes);
  return functions;
}

std::string name_in(const Dl_info& info, uintptr_t address) {
  static auto* const files = new std::map<std::string, Functions>;
  const auto [file, is_new] = files->try_emplace(info.dli_fname);
  if (is_new) file->second = functions_of(info.dli_fname);
  const auto* const header = static_cast<const Elf64_Ehdr*>(info.dli_fbase);
  const auto base = reinterpret_cast<uintptr_t>(info.dli_fbase);
  const uint64_t offset = header->e_type == ET_EXEC ? address : address - base;
  auto next = file->second.upper_bound(offset);
  if (next != file->second.begin()) {
    const auto& [end, name] = std::prev(next)->second;
    if (offset < end) return demangled(name.c_str());
  }
  const char* const slash = std::strrchr(info.dli_fname, '/');
  char text[256];
  std::snprintf(text, sizeof text, "%s+0x%zx", slash == nullptr ? info.dli_fname : slash + 1,
                static_cast<size_t>(offset));
  return text;
}

}  // namespace

std::string demangled(const char* name) {
  int failed = 0;
  char* const plain = abi::__cxa_demangle(name, nullptr, nullptr, &failed);
  std::string text = plain == nullptr ? name : plain;
  std::free(plain);
  return text;
}

std::vector<std::string> symbol_names(void* const* addresses, int n) {
  Dl_info self = {};
  dladdr(reinterpret_cast<void*>(&symbol_names), &self);
  std::vector<std::string> names;
  for (int i = 0; i < n; ++i) {
    Dl_info info = {};
    const uintptr_t call = reinterpret_cast<uintptr_t>(addresses[i]) - 1;
    if (dladdr(reinterpret_cast<void*>(call), &info) == 0 || info.dli_fname == nullptr) continue;
    if (info.dli_fbase != self.dli_fbase) names.push_back(name_in(info, call));
  }
  return names;
}

}  // namespace fake_cuda
