// c[M,N] = a[M,K] b[N,K]^T by cuBLASLt: in its column-major terms D[N,M] = op(b) op(a). Floats with CUBLAS_COMPUTE_32F,
// never in TF32; bf16 with sums in float. It serves operands with a stride of 1 in one dimension. product.cuh does the
// rest, and rows that must not depend on each other.
//
// The algorithm is looked up once for each form of a call (sizes, strides, types, alignment) and cached with the call's
// descriptors, in a table of SETS x WAYS forms; the least recently used form is replaced. Algorithms that split K add
// the parts in a fixed order (no atomics, sums in float), so that two runs give the same bits. The workspace is
// allocated once, since calls follow each other in one stream. WINNOW_CUBLASLT=0 leaves all products to winnow's own
// kernels.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/blas.cuh"
#include "backends/cuda/steps.cuh"
#ifndef WN_EMULATED
#include <cublasLt.h>
#endif

#define BLAS_CALLS(X)                                                                                                  \
  X(Create)                                                                                                            \
  X(GetVersion)                                                                                                        \
  X(MatmulDescCreate)                                                                                                  \
  X(MatmulDescDestroy)                                                                                                 \
  X(MatmulDescSetAttribute)                                                                                            \
  X(MatrixLayoutCreate)                                                                                                \
  X(MatrixLayoutDestroy)                                                                                               \
  X(MatmulPreferenceCreate)                                                                                            \
  X(MatmulPreferenceDestroy)                                                                                           \
  X(MatmulPreferenceSetAttribute)                                                                                      \
  X(MatmulAlgoGetHeuristic)                                                                                            \
  X(Matmul)

enum { SETS = 128, WAYS = 4 };
static const size_t WORKSPACE_BYTES = (size_t)32 << 20;

// The form of a call: plain numbers, compared as bytes.
struct blas_form {
  int64_t M, N, K, a_ld, b_ld, c_ld;
  int32_t a_across, b_across; // stride 1 is across the operand's rows, not along them
  int32_t bf16, c_bf16, accumulate, bias;
  int32_t a_align, b_align, c_align, unused;
};

struct blas_plan {
  blas_form form;
  uint64_t used;       // 0: empty slot
  bool served, proven; // proven: a call has succeeded
  cublasLtMatmulDesc_t call;
  cublasLtMatrixLayout_t a, b, c;
  cublasLtMatmulAlgo_t algorithm;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
#define BLAS_CALL(name) decltype(&cublasLt##name) name;
  BLAS_CALLS(BLAS_CALL)
} lt;
static bool tried, there, turned_off;
static cublasLtHandle_t handle; // NULL: no cuBLASLt
static void *workspace;
static blas_plan plans[SETS][WAYS];
static uint64_t uses;
static char product_name[64] = "winnow's own kernels";

// Opens the library; true: it has all functions.
static bool blas_open() {
#ifdef WN_EMULATED
#define BLAS_FIND(name) lt.name = &cublasLt##name;
  BLAS_CALLS(BLAS_FIND)
  return true;
#else
#define BLAS_TEXT2(x) #x
#define BLAS_TEXT(x) BLAS_TEXT2(x)
  static const char file[] = "libcublasLt.so." BLAS_TEXT(CUBLAS_VER_MAJOR);
  char path[512];
  snprintf(path, sizeof path, "%s/%s", WN_CUDA_LIBRARIES, file);
  void *library = wn_cuda_open_library(file);
  if (!library) library = wn_cuda_open_library(path);
  bool found = library != nullptr;
#define BLAS_FIND(name)                                                                                                \
  if (found) lt.name = reinterpret_cast<decltype(lt.name)>(dlsym(library, "cublasLt" #name));                          \
  found = found && lt.name;
  BLAS_CALLS(BLAS_FIND)
  return found;
#endif
}

// Called once per process, with the lock held.
static bool blas_find() {
  if (tried) return there;
  const char *wanted = getenv("WINNOW_CUBLASLT");
  tried = true;
  there = !(wanted && strcmp(wanted, "0") == 0) && blas_open();
  if (!there) return false;
  const size_t v = lt.GetVersion();
  snprintf(product_name, sizeof product_name, "cuBLASLt %zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
  return true;
}

void wn_cuda_blas_off(bool off) {
  turned_off = off;
}

const char *wn_cuda_products() {
  pthread_mutex_lock(&lock);
  (void)blas_find();
  pthread_mutex_unlock(&lock);
  return product_name;
}

wn_status wn_cuda_blas_begin(wn_context *ctx) {
  cublasLtHandle_t made = nullptr;
  cudaError_t error = cudaSuccess;
  pthread_mutex_lock(&lock);
  const bool found = blas_find() && lt.Create(&made) == CUBLAS_STATUS_SUCCESS;
  if (found) error = cudaMallocAsync(&workspace, WORKSPACE_BYTES, wn_cuda_work_stream);
  if (error == cudaSuccess) handle = made;
  pthread_mutex_unlock(&lock);
  if (error != cudaSuccess) return wn_cuda_fail(ctx, "the workspace of products", error);
  if (!found && !getenv("WINNOW_CUBLASLT"))
    wn_log(ctx, WN_LOG_WARNING, "cuBLASLt is not installed: products are made by winnow's own kernels, more slowly");
  return WN_OK;
}

// ---- the plan of a form; the lock is held ----

static bool set_call(cublasLtMatmulDesc_t call, cublasLtMatmulDescAttributes_t what, const void *value, size_t bytes) {
  return lt.MatmulDescSetAttribute(call, what, value, bytes) == CUBLAS_STATUS_SUCCESS;
}

static bool plan_describe(blas_plan *plan) {
  const blas_form &f = plan->form;
  const cudaDataType in = f.bf16 ? CUDA_R_16BF : CUDA_R_32F, out = f.c_bf16 ? CUDA_R_16BF : CUDA_R_32F;
  // cuBLASLt's first operand is b, [N,K]. Column-major, it is [K,N], unless stride 1 is across its rows.
  const cublasOperation_t first = f.b_across ? CUBLAS_OP_N : CUBLAS_OP_T;
  const cublasOperation_t second = f.a_across ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasLtEpilogue_t end = f.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  return lt.MatmulDescCreate(&plan->call, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
         set_call(plan->call, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first) &&
         set_call(plan->call, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second) &&
         set_call(plan->call, CUBLASLT_MATMUL_DESC_EPILOGUE, &end, sizeof end) &&
         lt.MatrixLayoutCreate(&plan->b, in, (uint64_t)(f.b_across ? f.N : f.K), (uint64_t)(f.b_across ? f.K : f.N),
                               f.b_ld) == CUBLAS_STATUS_SUCCESS &&
         lt.MatrixLayoutCreate(&plan->a, in, (uint64_t)(f.a_across ? f.M : f.K), (uint64_t)(f.a_across ? f.K : f.M),
                               f.a_ld) == CUBLAS_STATUS_SUCCESS &&
         lt.MatrixLayoutCreate(&plan->c, out, (uint64_t)f.N, (uint64_t)f.M, f.c_ld) == CUBLAS_STATUS_SUCCESS;
}

static bool plan_choose(blas_plan *plan) {
  const blas_form &f = plan->form;
  const struct {
    cublasLtMatmulPreferenceAttributes_t what;
    uint32_t value;
  } wishes[] = {
      {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)f.b_align},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)f.a_align},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)f.c_align},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)f.c_align},
  };
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulHeuristicResult_t best;
  int found = 0;
  if (lt.MatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) return false;
  bool said = lt.MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE_BYTES,
                                              sizeof WORKSPACE_BYTES) == CUBLAS_STATUS_SUCCESS;
  for (const auto &w : wishes)
    said =
        said && lt.MatmulPreferenceSetAttribute(preference, w.what, &w.value, sizeof w.value) == CUBLAS_STATUS_SUCCESS;
  const bool chosen = said &&
                      lt.MatmulAlgoGetHeuristic(handle, plan->call, plan->b, plan->a, plan->c, plan->c, preference, 1,
                                                &best, &found) == CUBLAS_STATUS_SUCCESS &&
                      found == 1 && best.state == CUBLAS_STATUS_SUCCESS;
  lt.MatmulPreferenceDestroy(preference);
  if (chosen) plan->algorithm = best.algo;
  return chosen;
}

static void plan_clear(blas_plan *plan) {
  if (plan->call) lt.MatmulDescDestroy(plan->call);
  if (plan->a) lt.MatrixLayoutDestroy(plan->a);
  if (plan->b) lt.MatrixLayoutDestroy(plan->b);
  if (plan->c) lt.MatrixLayoutDestroy(plan->c);
  *plan = blas_plan{};
}

static blas_plan *plan_of(const blas_form &form) {
  const int64_t parts[] = {form.M,    form.N,        form.K,        form.a_ld,      form.b_ld,
                           form.c_ld, form.a_across, form.b_across, form.accumulate};
  uint64_t hash = 0;
  for (const int64_t n : parts) hash = (hash + (uint64_t)n) * 0x9E3779B97F4A7C15u;
  blas_plan *set = plans[hash >> 32 & (SETS - 1)], *oldest = set;
  for (int i = 0; i < WAYS; i++) {
    if (set[i].used && memcmp(&set[i].form, &form, sizeof form) == 0) {
      set[i].used = ++uses;
      return &set[i];
    }
    if (set[i].used < oldest->used) oldest = &set[i];
  }
  plan_clear(oldest);
  oldest->form = form;
  oldest->used = ++uses;
  oldest->served = plan_describe(oldest) && plan_choose(oldest);
  return oldest;
}

// ---- a call ----

// The largest power of two, at most 16, that divides both.
static int32_t blas_align(const void *p, int64_t stride_bytes) {
  const uint64_t bits = (uint64_t)(uintptr_t)p | (uint64_t)stride_bytes | 16;
  return (int32_t)(bits & (~bits + 1));
}

// The layout of [rows,K] with these strides; false: cuBLASLt cannot read it.
static bool blas_lies(int64_t rows, int64_t K, int64_t row, int64_t k, int64_t *ld, int32_t *across) {
  *across = !(k == 1 && row >= K);
  *ld = *across ? k : row;
  return !*across || (row == 1 && k >= rows);
}

// Rounds n numbers of x, in lines with stride ld, to y; n, line and ld are in units of EACH.
template <int EACH>
static __global__ void blas_round_kernel(int64_t n, int64_t line, int64_t ld, wn_numbers x, wn_numbers y) {
  WN_GRID_LOOP(i, n) {
    float v[EACH];
    x.get((line == ld ? i : i / line * ld + i % line) * EACH, v);
    y.put(i * EACH, v);
  }
}

static size_t rounded_bytes(int64_t rows, int64_t K) {
  return ((size_t)rows * (size_t)K * sizeof(uint16_t) + 255) / 256 * 256;
}

size_t wn_cuda_blas_scratch(const struct wn_exec *exec, int64_t M, int64_t N, int64_t K, bool a_bf16, bool b_bf16) {
  if (exec->precision != WN_BF16) return 0;
  return (a_bf16 ? 0 : rounded_bytes(M, K)) + (b_bf16 ? 0 : rounded_bytes(N, K));
}

// Rounds a float operand into *scratch, which is advanced; the copy's lines are contiguous.
static void blas_round(const struct wn_exec *exec, int64_t rows, int64_t K, wn_numbers *x, int64_t *ld, bool across,
                       char **scratch) {
  const int64_t n = rows * K, line = across ? rows : K;
  const wn_numbers y = {*scratch, true};
  const cudaStream_t stream = wn_cuda_stream(exec);
  if (wn_by_eights(x->p, line) && wn_by_eights(y.p, *ld))
    WN_LAUNCH(wn_cuda_blocks(n / 8), WN_CUDA_THREADS, 0, stream, blas_round_kernel<8>, n / 8, line / 8, *ld / 8, *x, y);
  else
    WN_LAUNCH(wn_cuda_blocks(n), WN_CUDA_THREADS, 0, stream, blas_round_kernel<1>, n, line, *ld, *x, y);
  *x = y;
  *ld = line;
  *scratch += rounded_bytes(rows, K);
}

size_t wn_cuda_blas_rounded(const struct wn_exec *exec, wn_numbers *x, int64_t *ld, int64_t rows, int64_t K) {
  char *scratch = static_cast<char *>(exec->scratch);
  if (exec->precision != WN_BF16 || x->bf16 || !handle || turned_off) return 0;
  blas_round(exec, rows, K, x, ld, false, &scratch);
  return rounded_bytes(rows, K);
}

// A call, after its operands are rounded if needed: plain numbers, compared as bytes.
struct blas_call {
  blas_form form;
  const void *a, *b;
  void *c;
  const float *bias;
};

// False: cuBLASLt does not serve it after all.
static bool blas_multiply(const blas_call &x, cudaStream_t stream) {
  const float one = 1, beta = x.form.accumulate ? 1 : 0;
  pthread_mutex_lock(&lock);
  blas_plan *plan = plan_of(x.form);
  bool served = plan->served;
  if (served && x.bias) served = set_call(plan->call, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &x.bias, sizeof x.bias);
  if (served)
    served = lt.Matmul(handle, plan->call, &one, x.b, plan->b, x.a, plan->a, &beta, x.c, plan->c, x.c, plan->c,
                       &plan->algorithm, workspace, WORKSPACE_BYTES, stream) == CUBLAS_STATUS_SUCCESS;
  plan->proven = plan->proven || served;
  pthread_mutex_unlock(&lock);
  return served;
}

// A held-back call, of a form that has succeeded before.
static cudaError_t blas_held_back(const void *data, cudaStream_t stream) {
  blas_call call;
  memcpy(&call, data, sizeof call);
  return blas_multiply(call, stream) ? cudaSuccess : cudaErrorLaunchFailure;
}

bool wn_cuda_blas_product(const struct wn_exec *exec, const wn_product &p) {
  const bool bf16 = exec->precision == WN_BF16;
  blas_form f = {};
  f.M = p.M, f.N = p.N, f.K = p.K, f.c_ld = p.c_row, f.bf16 = bf16, f.c_bf16 = p.c.bf16;
  f.accumulate = p.accumulate, f.bias = p.bias != nullptr;
  if (!handle || turned_off || p.M < 1 || p.N < 1 || p.K < 1 || p.M > INT32_MAX || p.N > INT32_MAX || p.K > INT32_MAX)
    return false;
  if (p.c_row < p.N || !blas_lies(p.M, p.K, p.a_row, p.a_k, &f.a_ld, &f.a_across)) return false;
  if (!blas_lies(p.N, p.K, p.b_row, p.b_k, &f.b_ld, &f.b_across)) return false;
  if (!bf16 && (p.a.bf16 || p.b.bf16 || p.c.bf16)) return false;
  // cuBLASLt's bias has the type of c
  if (p.bias && (p.c.bf16 || (uintptr_t)p.bias % 16)) return false;
  wn_numbers a = p.a, b = p.b;
  char *scratch = static_cast<char *>(exec->scratch);
  const bool round_a = bf16 && !a.bf16, round_b = bf16 && !b.bf16;
  if (round_a) f.a_ld = f.a_across ? p.M : p.K;
  if (round_b) f.b_ld = f.b_across ? p.N : p.K;
  const int64_t size = bf16 ? 2 : 4, c_size = p.c.bf16 ? 2 : 4;
  f.a_align = blas_align(round_a ? nullptr : a.p, f.a_ld * size);
  f.b_align = blas_align(round_b ? nullptr : b.p, f.b_ld * size);
  f.c_align = blas_align(p.c.p, f.c_ld * c_size);
  pthread_mutex_lock(&lock);
  const blas_plan *plan = plan_of(f);
  const bool served = plan->served, proven = plan->proven;
  pthread_mutex_unlock(&lock);
  if (!served) return false;
  int64_t a_ld = p.a_k == 1 && !f.a_across ? p.a_row : p.a_k, b_ld = !f.b_across ? p.b_row : p.b_k;
  if (round_a) blas_round(exec, p.M, p.K, &a, &a_ld, f.a_across, &scratch);
  if (round_b) blas_round(exec, p.N, p.K, &b, &b_ld, f.b_across, &scratch);
  const blas_call call = {f, a.p, b.p, p.c.p, p.bias};
  if (proven && wn_cuda_step_is_open()) {
    wn_cuda_step_call(blas_held_back, &call, sizeof call);
    return true;
  }
  return wn_cuda_step_flush() == cudaSuccess && blas_multiply(call, wn_cuda_stream(exec));
}
