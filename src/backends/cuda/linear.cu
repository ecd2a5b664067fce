// y = x w^T + b, and its gradients. Few rows, with packed or float weights, use matrix-vector products that read blocks
// in place (matvec.cuh; the one for unaligned blocks and rows is here). Many rows, and dx, use panels of unpacked rows.
// Products are computed by cuBLASLt if it is installed and serves them, else by product.cuh.
//
// Forward, many rows with quantised weights are a prompt's: panel and x are rounded to bf16 and multiplied by tensor
// cores, with sums in float. What is many is a matter of the call alone, and a prompt's calls are pieces that end at
// fixed places of its text (wn_run), so that no row depends on what else is computed. Weights that a file has in floats
// or half floats keep their bits.
#include "backends/cuda/blas.cuh"
#include "backends/cuda/few_rows.cuh"
#include "backends/cuda/packed.cuh"

// db[n] += column sums of dy: eight threads per column, whose sums are added in order.
static __global__ void linear_bias_kernel(int64_t M, int64_t N, wn_numbers dy, int64_t lddy, float *db) {
  WN_SHARED(float, part, [8][32]);
  const int64_t n = (int64_t)blockIdx.x * 32 + threadIdx.x;
  float sum = 0;
  if (n < N)
    for (int64_t m = threadIdx.y; m < M; m += 8) sum += dy[m * lddy + n];
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || n >= N) return;
  for (int i = 1; i < 8; i++) sum += part[i][threadIdx.x];
  db[n] += sum;
}

enum { FEW_ROWS = 8 }; // rows of x that a warp multiplies with a row of blocks at a time
// Unpacked at a time: a panel of bf16 is wide, because its product has few rows; one of floats is for dx.
enum { PANEL_ROWS = 512, PANEL_BYTES = 64 << 20 };

// One warp per row n of w: a lane takes every 32nd weight, in the same order for every M.
static __global__ void linear_rows_kernel(int64_t M, int64_t N, int64_t K, const float *x, int64_t ldx,
                                          wn_packed_matrix w, const float *b, float *y, int64_t ldy, bool accumulate) {
  const int64_t n = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (n >= N) return;
  int type;
  const uint8_t *row = wn_packed_at(w, K, n, &type);
  float sum[FEW_ROWS] = {};
  for (int64_t k = lane; k < K; k += 32) {
    const float weight = wn_packed_element(type, row, k);
#pragma unroll
    for (int m = 0; m < FEW_ROWS; m++)
      if (m < M) sum[m] += x[m * ldx + k] * weight;
  }
#pragma unroll
  for (int m = 0; m < FEW_ROWS; m++) {
    float total = wn_warp_sum(sum[m]);
    if (lane != 0 || m >= M) continue;
    if (b) total += b[n];
    y[m * ldy + n] = accumulate ? y[m * ldy + n] + total : total;
  }
}

// Blocks that are not aligned: a block of threads a row.
static __global__ void linear_panel_kernel(int64_t first, int64_t K, wn_packed_matrix w, wn_numbers panel) {
  int type;
  const uint8_t *row = wn_packed_at(w, K, first + blockIdx.x, &type);
  for (int64_t k = threadIdx.x; k < K; k += blockDim.x) panel.set(blockIdx.x * K + k, wn_packed_element(type, row, k));
}

// Are many rows of forward rounded? Not from wn_context_options.exact_rows rows on.
static bool rounds(const struct wn_exec *exec, const struct wn_linear *a) {
  if (!a->packed || (exec->exact_rows > 0 && a->M >= exec->exact_rows)) return false;
  for (int i = 0; i < a->packed->count; i++)
    if (a->packed->part[i].type == WN_GGUF_F32 || a->packed->part[i].type == WN_GGUF_F16) return false;
  return true;
}
static int64_t panel_rows(const struct wn_linear *a, bool bf16) {
  const int64_t wide = PANEL_BYTES / (int64_t)sizeof(uint16_t) / a->K;
  return wn_cuda_min(a->N, bf16 && wide > PANEL_ROWS ? wide : (int64_t)PANEL_ROWS);
}
static size_t panel_bytes(const struct wn_linear *a, bool bf16) {
  const size_t each = bf16 ? sizeof(uint16_t) : sizeof(float);
  return ((size_t)(panel_rows(a, bf16) * a->K) * each + 255) / 256 * 256;
}
static struct wn_exec exec_in_bf16(const struct wn_exec *exec) {
  struct wn_exec out = *exec;
  out.precision = WN_BF16;
  return out;
}
size_t wn_cuda_linear_scratch(const struct wn_exec *exec, const struct wn_linear *a, bool backward) {
  if (!backward && (a->rows_apart || (a->packed && a->M <= FEW_ROWS))) return 0;
  const bool bf16 = !backward && rounds(exec, a);
  const int64_t rows = a->packed ? panel_rows(a, bf16) : a->N;
  const size_t panel = a->packed ? panel_bytes(a, bf16) : 0;
  const struct wn_exec half = exec_in_bf16(exec);
  if (bf16) return panel + wn_cuda_blas_scratch(&half, a->M, rows, a->K, false, true);
  if (!backward) return panel + wn_cuda_blas_scratch(exec, a->M, rows, a->K, a->x_type == WN_BF16, false);
  const bool dy = a->dy_type == WN_BF16;
  const size_t dx = wn_cuda_blas_scratch(exec, a->M, a->K, rows, dy, false);
  const size_t dw = wn_cuda_blas_scratch(exec, a->N, a->K, a->M, dy, a->x_type == WN_BF16);
  return panel + (dx > dw ? dx : dw);
}

// `used`: bytes of scratch in use.
static void linear_product(const struct wn_exec *exec, const wn_product &p, size_t used) {
  const struct wn_exec behind = wn_exec_behind(exec, used);
  if (!wn_cuda_blas_product(&behind, p)) wn_product_launch(exec, p);
}

// Rows [first, +rows) of w to panel [rows,K], part by part.
static void linear_unpack(const struct wn_exec *exec, const struct wn_linear *a, int64_t first, int64_t rows,
                          wn_numbers panel) {
  for (int i = 0; i < a->packed->count && rows > 0; first -= a->packed->part[i++].rows) {
    const struct wn_packed only = {1, {a->packed->part[i]}};
    const int64_t now = wn_cuda_min(rows, only.part->rows - first);
    if (now <= 0) continue;
    if (!panel.bf16 || !wn_cuda_unpack(exec, only.part, first, now, a->K, panel.p))
      WN_LAUNCH((unsigned)now, WN_CUDA_THREADS, 0, wn_cuda_stream(exec), linear_panel_kernel, first, a->K,
                wn_packed_matrix_of(&only), panel);
    panel.p = static_cast<char *>(panel.p) + (size_t)(now * a->K) * (panel.bf16 ? sizeof(uint16_t) : sizeof(float));
    first += now, rows -= now;
  }
}

// Calls `use` for each panel: rows [first, +rows) of w, at the start of scratch.
template <class Use>
static void linear_panels(const struct wn_exec *exec, const struct wn_linear *a, bool bf16, Use use) {
  const wn_numbers panel = {exec->scratch, bf16};
  const int64_t most = panel_rows(a, bf16);
  for (int64_t first = 0; first < a->N; first += most) {
    const int64_t rows = wn_cuda_min(most, a->N - first);
    linear_unpack(exec, a, first, rows, panel);
    use(first, rows, panel);
  }
}

static void linear_packed_forward(const struct wn_exec *exec, const struct wn_linear *a) {
  const float *b = static_cast<const float *>(a->b);
  if (a->M <= FEW_ROWS || a->rows_apart) {
    int64_t n = 0;
    for (int i = 0; i < a->packed->count; n += a->packed->part[i++].rows) {
      const struct wn_packed only = {1, {a->packed->part[i]}};
      const float *x = static_cast<const float *>(a->x), *of = b ? b + n : nullptr;
      float *y = static_cast<float *>(a->y) + n;
      if (wn_cuda_few_rows(exec, only.part, a->M, a->K, x, a->ldx, of, y, a->ldy, a->accumulate)) continue;
      for (int64_t m = 0; m < a->M; m += FEW_ROWS)
        WN_LAUNCH((unsigned)wn_cuda_parts(only.part->rows, 4), 128, 0, wn_cuda_stream(exec), linear_rows_kernel,
                  wn_cuda_min(FEW_ROWS, a->M - m), only.part->rows, a->K, x + m * a->ldx, a->ldx,
                  wn_packed_matrix_of(&only), of, y + m * a->ldy, a->ldy, a->accumulate);
    }
    return;
  }
  const bool bf16 = rounds(exec, a);
  const struct wn_exec in = bf16 ? exec_in_bf16(exec) : *exec, behind = wn_exec_behind(&in, panel_bytes(a, bf16));
  wn_numbers x = wn_numbers_of(a->x, WN_F32);
  int64_t ldx = a->ldx;
  wn_cuda_blas_rounded(&behind, &x, &ldx, a->M, a->K); // once for all panels
  linear_panels(&in, a, bf16, [&](int64_t first, int64_t rows, wn_numbers panel) {
    wn_product p = {};
    p.M = a->M, p.N = rows, p.K = a->K, p.a = x, p.a_row = ldx, p.a_k = 1;
    p.b = panel, p.b_row = a->K, p.b_k = 1;
    p.c = wn_numbers_of(static_cast<float *>(a->y) + first, WN_F32), p.c_row = a->ldy;
    p.bias = b ? b + first : nullptr, p.accumulate = a->accumulate;
    linear_product(&in, p, panel_bytes(a, bf16));
  });
}

// Few rows with float weights are treated like quantised weights: in a tile of 64 rows most would be idle. With
// rows_apart this holds for any number of rows, since a single row counts as few.
static bool linear_dense_few(const struct wn_exec *exec, const struct wn_linear *a) {
  const struct wn_packed_part whole = {WN_GGUF_F32, a->N, a->w, nullptr};
  if ((a->M > FEW_ROWS && !a->rows_apart) || exec->precision == WN_BF16) return false;
  return wn_cuda_few_rows(exec, &whole, a->M, a->K, static_cast<const float *>(a->x), a->ldx,
                          static_cast<const float *>(a->b), static_cast<float *>(a->y), a->ldy, a->accumulate);
}

wn_status wn_cuda_linear_forward(const struct wn_exec *exec, const struct wn_linear *a) {
  const wn_dtype t = exec->dtype;
  if (a->M == 0) return WN_OK;
  if (a->packed) {
    linear_packed_forward(exec, a);
    return wn_cuda_launched(exec, "linear");
  }
  if (linear_dense_few(exec, a)) return wn_cuda_launched(exec, "linear");
  wn_product p = {};
  p.M = a->M, p.N = a->N, p.K = a->K, p.a = wn_numbers_of(a->x, wn_array_type(a->x_type, t)), p.a_row = a->ldx;
  p.a_k = 1, p.b = wn_numbers_of(a->w, t), p.b_row = a->K, p.b_k = 1;
  p.c = wn_numbers_of(a->y, wn_array_type(a->y_type, t)), p.c_row = a->ldy;
  p.bias = static_cast<const float *>(a->b), p.accumulate = a->accumulate;
  if (a->rows_apart)
    wn_product_launch(exec, p);
  else
    linear_product(exec, p, 0);
  return wn_cuda_launched(exec, "linear");
}

wn_status wn_cuda_linear_backward(const struct wn_exec *exec, const struct wn_linear *a) {
  const wn_dtype t = exec->dtype;
  const wn_numbers given = wn_numbers_of(a->dy, wn_array_type(a->dy_type, t));
  wn_numbers dy = given;
  int64_t lddy = a->lddy;
  size_t used = 0;
  wn_product p = {};
  if (a->M == 0) return WN_OK;
  if (a->dx && a->dw && !a->packed) used = wn_cuda_blas_rounded(exec, &dy, &lddy, a->M, a->N);
  if (a->dx) { // dy [M,N] times w [N,K]: summed over n
    p.M = a->M, p.N = a->K, p.K = a->N, p.a = dy, p.a_row = lddy, p.a_k = 1;
    p.b = wn_numbers_of(a->w, t), p.b_row = 1, p.b_k = a->K;
    p.c = wn_numbers_of(a->dx, wn_array_type(a->dx_type, t)), p.c_row = a->lddx, p.accumulate = a->accumulate_dx;
    if (!a->packed) linear_product(exec, p, used);
    if (a->packed)
      linear_panels(exec, a, false, [&](int64_t first, int64_t rows, wn_numbers panel) {
        p.K = rows, p.a = wn_numbers_of(static_cast<const float *>(a->dy) + first, WN_F32);
        p.b = panel, p.accumulate = a->accumulate_dx || first > 0;
        linear_product(exec, p, panel_bytes(a, false));
      });
  }
  if (a->dw) { // dy^T [N,M] times x [M,K]: summed over m
    p = wn_product{};
    p.M = a->N, p.N = a->K, p.K = a->M, p.a = dy, p.a_row = 1, p.a_k = lddy;
    p.b = wn_numbers_of(a->x, wn_array_type(a->x_type, t)), p.b_row = 1, p.b_k = a->ldx;
    p.c = wn_numbers_of(a->dw, t), p.c_row = a->K, p.accumulate = !a->dw_fresh;
    linear_product(exec, p, used);
  }
  if (a->db)
    WN_LAUNCH((unsigned)wn_cuda_parts(a->N, 32), dim3(32, 8), 0, wn_cuda_stream(exec), linear_bias_kernel, a->M, a->N,
              given, a->lddy, static_cast<float *>(a->db));
  return wn_cuda_launched(exec, "linear");
}
