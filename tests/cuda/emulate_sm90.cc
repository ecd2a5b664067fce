// The instructions of emulate_sm90.h.
#include <map>
#include <vector>

#include "cuda/emulate.h"

namespace emulate {
namespace {

enum { WARPS = 32, FIRST_ADDRESS = 1024 }; // the address of dynamic shared memory in descriptors

struct barrier_of_phases {
  int count, pending;
  int64_t bytes; // bytes still to arrive
  uint32_t phase;
  bool fenced;
  std::vector<std::pair<int, uint32_t>> waiting; // threads and the parities they wait for
};
struct copy {
  char *to;
  std::vector<const char *> from; // rows of 16-byte pieces; NULL: zeros
  size_t piece;
  bool swizzle;
  wn_mbarrier *barrier;
  site at;
  bool late; // arrives only when no thread can continue
};
struct product_issued {
  wgmma lanes[32];
  int group;
  site at;
};
struct accumulator {
  float *d[32];
  int n;
  std::vector<float> value[32];
};
struct warp_state {
  std::vector<product_issued> issued;
  std::vector<accumulator> held;
  int group, products;
  bool fenced;
  int registers;
  site at;
};

char *memory;
size_t memory_bytes;
std::vector<char> proxy; // shared memory as seen by asynchronous operations
std::map<wn_mbarrier *, barrier_of_phases> phases;
std::vector<copy> under_way;
warp_state warps[WARPS];
int warp_count;

const uint64_t MARK = 0x6d62617272696572u;

bool inside(const void *p, size_t bytes) {
  const char *c = static_cast<const char *>(p);
  return c >= memory && bytes <= memory_bytes && (size_t)(c - memory) <= memory_bytes - bytes;
}

barrier_of_phases *find(site at, wn_mbarrier *b) {
  const auto found = phases.find(b);
  if (found == phases.end() || *b != MARK) {
    say(at, found == phases.end() ? "there is no mbarrier" : "an mbarrier was written over");
    sleep_at(at);
  }
  return &found->second;
}

void complete(barrier_of_phases &b) {
  if (b.pending > 0 || b.bytes != 0) return;
  b.phase ^= 1;
  b.pending = b.count;
  std::vector<std::pair<int, uint32_t>> still;
  for (const auto &w : b.waiting) {
    if (w.second != b.phase)
      wake(w.first);
    else
      still.push_back(w);
  }
  b.waiting = still;
}

void both(char *to, const void *from, size_t bytes) {
  memcpy(to, from, bytes);
  memcpy(proxy.data() + (to - memory), from, bytes);
}
uint32_t swizzled(uint32_t address) {
  return address ^ (address >> 3 & 0x70);
}

void arrive(const copy &c) {
  static const char zeros[128] = {0};
  for (size_t i = 0; i < c.from.size(); i++) {
    const char *from = c.from[i] ? c.from[i] : zeros; // outside the tensor
    const size_t offset = i * c.piece;
    if (!c.swizzle) {
      both(c.to + offset, from, c.piece);
      continue;
    }
    const uint32_t address = (uint32_t)(c.to - memory) + FIRST_ADDRESS + (uint32_t)offset;
    both(memory + swizzled(address) - FIRST_ADDRESS, from, c.piece);
  }
  const auto b = phases.find(c.barrier);
  if (*c.barrier != MARK) return say(c.at, "an mbarrier was written over");
  b->second.bytes -= (int64_t)(c.from.size() * c.piece);
  complete(b->second);
}

// Whether the copy could start. A thread that waits forever after an error must not own anything.
bool begin(copy &c, size_t bytes, const barrier_of_phases &b) {
  if (!b.fenced) say(c.at, "a copy on an mbarrier whose initialisation was not fenced");
  if (!inside(c.to, bytes)) {
    say(c.at, "a copy of %zu bytes to outside of dynamic shared memory", bytes);
    return false;
  }
  const std::vector<char> rubbish(bytes, (char)0xff);
  both(c.to, rubbish.data(), bytes);
  c.late = some_random() % 2;
  under_way.push_back(c);
  return true;
}

/* ---- wgmma ---- */

// Reads a descriptor's operand into to[k][row]: 16 k, `rows` rows from row0 on. Tiles use the 128-byte swizzle.
// K-major: rows of 128 bytes; groups of 8 rows are `stride` apart. MN-major: a row of 128 bytes has element k of
// 64 rows; groups of 8 k are `stride` apart, the next 64 rows `lead`.
void operand(site at, uint64_t descriptor, int row0, int rows, bool mn_major, double *to) {
  const uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4, lead = (uint32_t)(descriptor >> 16 & 0x3fff) << 4,
                 stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
  if (descriptor >> 62 != 1 || descriptor >> 49 & 7) say(at, "a descriptor without the 128-byte swizzle");
  for (uint32_t k = 0; k < 16; k++)
    for (int i = 0; i < rows; i++) {
      const uint32_t r = (uint32_t)(row0 + i);
      const uint32_t address = swizzled(start + (mn_major ? r / 64 * lead + r % 64 * 2 + k % 8 * 128 + k / 8 * stride
                                                          : r / 8 * stride + r % 8 * 128 + k * 2));
      uint16_t bits = 0;
      if (address < FIRST_ADDRESS || address - FIRST_ADDRESS + 2 > memory_bytes)
        say(at, "a descriptor leads to outside of dynamic shared memory");
      else
        memcpy(&bits, proxy.data() + (address - FIRST_ADDRESS), 2);
      to[k * (uint32_t)rows + (uint32_t)i] = bf16_value(bits);
    }
}

/* sums[16][n] += a[k][row] b[k][c]. Most of the emulation's time is spent here, so it is optimised in every build and
 * not instrumented: it touches only its caller's arrays. */
#if defined(__GNUC__) && !defined(__clang__)
__attribute__((optimize("O3"), no_sanitize("address", "undefined")))
#endif
void multiply(const double (&a)[16][16], const double (&b)[16 * 128], int n, double (&sums)[16 * 128]) {
  for (int row = 0; row < 16; row++)
    for (int k = 0; k < 16; k++)
      for (int c = 0; c < n; c++) sums[row * n + c] += a[k][row] * b[k * n + c];
}

void compute(warp_state &w, int warp, const product_issued &p) {
  const wgmma &first = p.lanes[0];
  double a[16][16], b[16 * 128], sums[16 * 128]; // a[k][row]
  if (!first.a) operand(p.at, first.da, warp % 4 * 16, 16, false, &a[0][0]);
  for (int l = 0; first.a && l < 32; l++)
    for (int i = 0; i < 4; i++)
      for (int e = 0; e < 2; e++)
        a[l % 4 * 2 + 8 * (i / 2) + e][l / 4 + 8 * (i % 2)] = bf16_value((uint16_t)(p.lanes[l].a[i] >> (16 * e)));
  operand(p.at, first.db, 0, first.n, first.b_mn_major, b);
  accumulator *to = nullptr;
  for (accumulator &h : w.held)
    if (h.d[0] == first.d) to = &h;
  const int n = first.n;
  const auto place = [n](int lane, int i) { // of every 8 columns a lane has two, in rows 0 to 7 and 8 to 15
    return (lane / 4 + i / 2 % 2 * 8) * n + i / 4 * 8 + lane % 4 * 2 + i % 2;
  };
  for (int lane = 0; lane < 32; lane++)
    for (int i = 0; i < n / 2; i++) sums[place(lane, i)] = first.add ? (double)to->value[lane][(size_t)i] : 0;
  multiply(a, b, n, sums);
  for (int lane = 0; lane < 32; lane++)
    for (int i = 0; i < n / 2; i++) to->value[lane][(size_t)i] = (float)sums[place(lane, i)];
}

warp_state &mine() {
  return warps[thread_id() / 32];
}

void issue_run(void *const data[32], const void *what) {
  const site at = *static_cast<const site *>(what);
  warp_state &w = mine();
  product_issued p;
  p.group = w.group, p.at = at;
  for (int l = 0; l < 32; l++) {
    p.lanes[l] = *static_cast<const wgmma *>(data[l]);
    if (p.lanes[l].db != p.lanes[0].db || p.lanes[l].da != p.lanes[0].da || p.lanes[l].add != p.lanes[0].add)
      say(at, "lanes of a warp give different descriptors");
  }
  if (!w.fenced) say(at, "a product after a wait without wgmma.fence");
  w.products++, w.at = at;
  bool held = false;
  for (const accumulator &h : w.held) held = held || h.d[0] == p.lanes[0].d;
  if (!held) {
    accumulator h;
    h.n = p.lanes[0].n / 2;
    for (int l = 0; l < 32; l++) {
      h.d[l] = p.lanes[l].d;
      h.value[l].assign(h.d[l], h.d[l] + h.n);
      memset(h.d[l], 0xff, sizeof(float) * (size_t)h.n);
    }
    w.held.push_back(h);
  }
  w.issued.push_back(p);
}

struct wait_for {
  site at;
  int groups;
};
void wait_run(void *const[32], const void *what) {
  const wait_for &x = *static_cast<const wait_for *>(what);
  warp_state &w = mine();
  const int warp = thread_id() / 32;
  std::vector<product_issued> left;
  for (const product_issued &p : w.issued) {
    if (p.group < w.group - x.groups)
      compute(w, warp, p);
    else
      left.push_back(p);
  }
  w.issued = left;
  std::vector<accumulator> held;
  for (const accumulator &h : w.held) {
    bool still = false;
    for (const product_issued &p : left) still = still || p.lanes[0].d == h.d[0];
    if (still) {
      held.push_back(h);
      continue;
    }
    for (int l = 0; l < 32; l++) memcpy(h.d[l], h.value[l].data(), sizeof(float) * (size_t)h.n);
  }
  w.held = held;
  w.fenced = false;
}
void fence_run(void *const[32], const void *) {
  mine().fenced = true;
}
void commit_run(void *const[32], const void *) {
  mine().group++;
}

} // namespace

void async_begin(char *shared, size_t bytes, int threads) {
  memory = shared, memory_bytes = bytes;
  proxy.assign(bytes, (char)0xff);
  phases.clear(), under_way.clear();
  warp_count = (threads + 31) / 32;
  for (int i = 0; i < warp_count; i++) warps[i] = warp_state();
}

bool async_arrive(bool idle) {
  if (under_way.empty()) return false;
  // Any pending operation may come next; in order 0 it is the newest. If no thread can continue, one must complete.
  const size_t which = under_way.size() - 1 - (size_t)(some_random() % under_way.size());
  if (!idle && (under_way[which].late || some_random() % 2 == 0)) return false;
  const copy c = under_way[which];
  under_way.erase(under_way.begin() + (std::ptrdiff_t)which);
  arrive(c);
  return true;
}

void async_end() {
  if (!under_way.empty()) say(under_way[0].at, "a block ended with copies under way");
  int registers = 0;
  site asked = {"", 0};
  for (int i = 0; i < warp_count; i++) {
    const warp_state &w = warps[i], &first = warps[i / 4 * 4];
    if (!w.issued.empty()) say(w.issued[0].at, "a warp ended with products that it never waited for");
    if (w.products != first.products)
      say(w.products ? w.at : first.at, "warps of a group took part in %d and %d products", w.products, first.products);
    registers += 32 * w.registers;
    if (w.registers) asked = w.at;
  }
  if (registers > 65536) say(asked, "%d registers, a processor has 65536", registers);
}

void mbarrier_init(site at, wn_mbarrier *b, int count) {
  if (!inside(b, sizeof *b) || (uintptr_t)b % 8 || count < 1) say(at, "an mbarrier that cannot be one");
  phases[b] = {count, count, 0, 0, false, {}};
  *b = MARK;
}
void mbarrier_init_fence() {
  for (auto &p : phases) p.second.fenced = true;
}
void mbarrier_arrive(site at, wn_mbarrier *where, uint32_t bytes) {
  barrier_of_phases *b = find(at, where);
  if (b->pending == 0) say(at, "more arrivals than the mbarrier's count of %d", b->count);
  b->bytes += bytes;
  b->pending--;
  complete(*b);
}
void mbarrier_wait(site at, wn_mbarrier *where, uint32_t parity) {
  barrier_of_phases *b = find(at, where);
  if (b->phase != parity) return;
  b->waiting.push_back({thread_id(), parity});
  sleep_at(at);
}

static bool tensor_copy(site at, void *to, const wn_tensor_map *m, wn_mbarrier *b, const int (&where)[4],
                        const barrier_of_phases &phase) {
  copy c = {static_cast<char *>(to), {}, 16, true, b, at, false};
  for (int r = 0; r < m->rows; r++)
    for (int piece = 0; piece < 8; piece++) {
      const int64_t index[4] = {where[0] + piece * 8, where[1] + r, where[2], where[3]};
      const char *from = m->base;
      for (int i = 0; i < 4; i++) {
        if (index[i] < 0 || index[i] >= m->size[i]) from = nullptr;
        if (from) from += index[i] * m->stride[i];
      }
      c.from.push_back(from);
    }
  return begin(c, (size_t)m->rows * 128, phase);
}
static bool bulk_copy(site at, void *to, const void *from, uint32_t bytes, wn_mbarrier *b,
                      const barrier_of_phases &phase) {
  copy c = {static_cast<char *>(to), {static_cast<const char *>(from)}, bytes, false, b, at, false};
  return begin(c, bytes, phase);
}
void tensor_load(site at, void *to, const wn_tensor_map *m, wn_mbarrier *b, const int (&where)[4]) {
  if (shared_address(at, to) % 128) say(at, "a tensor copy to a place that is not aligned to 128 bytes");
  const barrier_of_phases *phase = find(at, b);
  if (!tensor_copy(at, to, m, b, where, *phase)) sleep_at(at);
}
void bulk_load(site at, void *to, const void *from, uint32_t bytes, wn_mbarrier *b) {
  if ((uintptr_t)to % 16 || (uintptr_t)from % 16 || bytes % 16 || !bytes)
    say(at, "a bulk copy that is not aligned to 16 bytes");
  const barrier_of_phases *phase = find(at, b);
  if (!bulk_copy(at, to, from, bytes, b, *phase)) sleep_at(at);
}
void proxy_fence() {
  memcpy(proxy.data(), memory, memory_bytes);
}
uint32_t shared_address(site at, const void *p) {
  if (!inside(p, 1)) say(at, "an address outside of dynamic shared memory");
  return (uint32_t)(static_cast<const char *>(p) - memory) + FIRST_ADDRESS;
}

void wgmma_issue(site at, const wgmma &w) {
  wgmma own = w;
  warp(at, ~0u, issue_run, &at, &own, true);
}
void wgmma_fence(site at) {
  char none = 0;
  warp(at, ~0u, fence_run, nullptr, &none, true);
}
void wgmma_commit(site at) {
  char none = 0;
  warp(at, ~0u, commit_run, nullptr, &none, true);
}
void wgmma_wait(site at, int groups) {
  char none = 0;
  const wait_for x = {at, groups};
  warp(at, ~0u, wait_run, &x, &none, true);
}
void registers(site at, int n) {
  if (n < 24 || n > 256 || n % 8) say(at, "setmaxnreg of %d registers", n);
  mine().registers = n, mine().at = at;
}

} // namespace emulate

const char *wn_tensor_map_rows(wn_tensor_map *m, const void *base, int D, int T, int H, int B, int64_t t, int64_t h,
                               int64_t b, int rows) {
  *m = {static_cast<const char *>(base), {D, T, H, B}, {2, t * 2, h * 2, b * 2}, rows};
  bool good = (uintptr_t)base % 16 == 0 && rows >= 1 && rows <= 256;
  for (int i = 0; i < 4; i++) good = good && m->size[i] > 0 && (i == 0 || (m->stride[i] > 0 && m->stride[i] % 16 == 0));
  return good ? nullptr : "no tensor map has these strides";
}
