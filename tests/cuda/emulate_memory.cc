/* Device memory: pages that can be accessed only while a kernel or copy runs. Each array ends at a page that can never
 * be accessed. A new array contains garbage. */
#include <stdlib.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include <map>
#include <vector>

#include "cuda/emulate_queue.h"

namespace emulate {

static const size_t PAGE = 4096, RESERVED = (size_t)1 << 36;

struct array {
  char *first; /* its pages, without the guard page */
  size_t mapped, bytes;
};
static std::map<char *, array> arrays; /* by the address returned */
static std::multimap<size_t, char *> spare;
static char *reserved, *next_page;
uint64_t allocations;

static void open_one(const array &a, bool open) {
  if (mprotect(a.first, a.mapped, open ? PROT_READ | PROT_WRITE : PROT_NONE)) abort();
}
void memory_open(bool open) {
  for (auto &a : arrays) open_one(a.second, open);
}

/* The array that contains these bytes, or NULL. */
static const array *array_of(const void *p, size_t bytes) {
  auto after = arrays.upper_bound(static_cast<char *>(const_cast<void *>(p)));
  if (after == arrays.begin()) return nullptr;
  --after;
  const size_t at = (size_t)(static_cast<const char *>(p) - after->first);
  return at <= after->second.bytes && bytes <= after->second.bytes - at ? &after->second : nullptr;
}

bool is_array(const void *p, size_t bytes) {
  return array_of(p, bytes) != nullptr;
}
bool is_given_back(const void *p) {
  const char *at = static_cast<const char *>(p);
  for (const auto &s : spare)
    if (at >= s.second && at < s.second + s.first) return true;
  return false;
}
void memory_open_array(const void *p, size_t bytes, bool open) {
  const array *a = array_of(p, bytes);
  if (a) open_one(*a, open);
}

/* Tells the address sanitizer that the rest of the array's own pages belongs to no array. */
static void edges(const array &a, const char *p, bool shut) {
#ifdef __SANITIZE_ADDRESS__
  if (shut) {
    __asan_poison_memory_region(a.first, (size_t)(p - a.first));
    __asan_poison_memory_region(p + a.bytes, a.mapped - (size_t)(p - a.first) - a.bytes);
  } else {
    __asan_unpoison_memory_region(a.first, a.mapped);
  }
#else
  (void)a, (void)p, (void)shut;
#endif
}

static char *pages_take(size_t bytes) {
  const auto found = spare.find(bytes);
  if (found != spare.end()) {
    char *first = found->second;
    spare.erase(found);
    return first;
  }
  if (!reserved) {
    void *p = mmap(nullptr, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    reserved = next_page = static_cast<char *>(p);
  }
  if (bytes + PAGE > RESERVED - (size_t)(next_page - reserved)) return nullptr;
  char *first = next_page;
  next_page += bytes + PAGE;
  return first;
}

} // namespace emulate

uint64_t wn_emulate_allocations(void) {
  emulate::streams_finish();
  return emulate::allocations;
}

cudaError_t cudaMemGetInfo(size_t *spare, size_t *all) {
  *all = *spare = emulate::RESERVED / 2;
  for (const auto &a : emulate::arrays) *spare -= a.second.mapped;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
  using namespace emulate;
  if (capture_refuses(nullptr, "cudaMalloc")) return cudaErrorStreamCaptureUnsupported;
  allocations++;
  if (bytes == 0 || bytes > RESERVED / 2) return cudaErrorMemoryAllocation;
  const size_t rounded = (bytes + 255) / 256 * 256, whole = (rounded + PAGE - 1) / PAGE * PAGE;
  char *first = pages_take(whole);
  if (!first || mprotect(first, whole, PROT_READ | PROT_WRITE)) return cudaErrorMemoryAllocation;
  memset(first, 0xff, whole);
  if (mprotect(first, whole, PROT_NONE)) return cudaErrorMemoryAllocation;
  char *p = first + (whole - rounded);
  arrays[p] = {first, whole, bytes};
  edges(arrays[p], p, true);
  *out = p;
  return cudaSuccess;
}

cudaError_t cudaFree(void *p) {
  using namespace emulate;
  if (capture_refuses(nullptr, "cudaFree")) return cudaErrorStreamCaptureUnsupported;
  streams_finish(); /* pending work may still use it */
  allocations++;
  const auto found = arrays.find(static_cast<char *>(p));
  if (found == arrays.end()) return cudaErrorInvalidValue;
  edges(found->second, found->first, false);
  (void)madvise(found->second.first, found->second.mapped, MADV_DONTNEED);
  spare.emplace(found->second.mapped, found->second.first);
  arrays.erase(found);
  return cudaSuccess;
}
