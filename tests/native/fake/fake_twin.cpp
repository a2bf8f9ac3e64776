// The C ABI of the twin without a twin: it keeps memory and repeats what it was told, so that tests of the binding
// see each argument. Including capi.h makes a changed signature an error here.
#include <twin/capi.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

struct epsim_machine {
  std::string params;
  std::string calls = {}, text = {};
  std::vector<unsigned char> memory = std::vector<unsigned char>(4096, 0xff);
  uint64_t used = 512;
};

namespace {
int num_live = 0;
std::string last_error;

int refuse(const char* why) {
  last_error = why;
  return -1;
}
bool is_outside(epsim_machine* m, uint64_t address, uint64_t n) {
  return address < 512 || address > m->memory.size() || n > m->memory.size() - address;
}
template <class... Words>
void note(epsim_machine* m, const char* name, Words... words) {
  m->calls += std::string(m->calls.empty() ? "\"" : ", \"") + name;
  ((m->calls += " " + std::to_string(words)), ...);
  m->calls += "\"";
}
}  // namespace

extern "C" {
int fake_num_live() { return num_live; }
const char* fake_params(epsim_machine* m) { return m->params.c_str(); }

epsim_machine* epsim_machine_create(const char* params) {
  if (std::strstr(params, "unknown")) return refuse("no parameter \"unknown\""), nullptr;
  ++num_live;
  return new epsim_machine{params};
}
void epsim_machine_destroy(epsim_machine* m) {
  --num_live;
  delete m;
}
uint64_t epsim_alloc(epsim_machine* m, int32_t rank, uint64_t n, const char* name, uint32_t flags) {
  if (n > 1024) return refuse("too much"), 0;
  note(m, name, rank, n, flags);
  m->used += 512;
  if (flags) std::memset(&m->memory[m->used - 512], 0, n);
  return m->used - 512;
}
int32_t epsim_write(epsim_machine* m, uint64_t address, const void* source, uint64_t n) {
  if (is_outside(m, address, n)) return refuse("outside");
  std::memcpy(&m->memory[address], source, n);
  return 0;
}
int32_t epsim_read(epsim_machine* m, uint64_t address, void* target, uint64_t n) {
  if (is_outside(m, address, n)) return refuse("outside");
  std::memcpy(target, &m->memory[address], n);
  return 0;
}
int32_t epsim_forget(epsim_machine* m, uint64_t address, uint64_t n) {
  if (is_outside(m, address, n)) return refuse("outside");
  std::memset(&m->memory[address], 0xff, n);
  return 0;
}
int32_t epsim_init_jetties(epsim_machine* m) { return m->used == 512 ? refuse("no window") : 0; }
uint64_t epsim_find(epsim_machine*, int32_t rank, const char* name) {
  return rank == 1 && !std::strcmp(name, "window") ? (2ull << 40 | 512) : 0;
}
int32_t epsim_enqueue(epsim_machine* m, int32_t rank, const char* kernel, uint64_t args, int32_t blocks) {
  if (!std::strcmp(kernel, "none")) return refuse("no kernel \"none\"");
  note(m, kernel, rank, args, blocks);
  return 0;
}
int32_t epsim_enqueue_wait_words(epsim_machine* m, int32_t rank, uint64_t address, uint32_t n, uint32_t mask,
                                 uint32_t value) {
  note(m, "wait", rank, address, n, mask, value);
  return 0;
}
int32_t epsim_run(epsim_machine* m) {
  if (std::strstr(m->params.c_str(), "misuse")) return refuse("misused");
  return std::strstr(m->params.c_str(), "violate") ? 1 : 0;
}
const char* epsim_report(epsim_machine* m) {
  if (!std::strstr(m->params.c_str(), "violate")) return "null";
  return R"({"rule": "data_race", "text": "Order both.", "message": "two accesses", "file": "kernels/a.hpp", "line": 7,
    "rank": 1, "aiv": 0, "pipe": "MTE2", "lane": -1, "others": [{"file": "kernels/b.hpp", "line": 9, "rank": 1,
    "aiv": 0, "pipe": "V", "lane": 31, "what": "written here"}]})";
}
int32_t epsim_trace(epsim_machine* m, const char* path) {
  FILE* file = std::fopen(path, "w");
  if (!file) return refuse("cannot be written");
  std::fprintf(file, "[%s]\n", m->calls.c_str());
  std::fclose(file);
  return 0;
}
const char* epsim_stats(epsim_machine* m) {
  m->text = "{\"calls\": [" + m->calls + "]}";
  return m->text.c_str();
}
const char* epsim_kernels(void) { return R"(["dispatch", "combine"])"; }
const char* epsim_last_error(void) { return last_error.c_str(); }
}
