/* winnow: the context. Holds the backend, the thread count, the log callback and the detail of the last error.
 *
 * Threads. One context serves one thread at a time, and so does every object made from it, which borrows it and must be
 * destroyed before it. Threads with contexts of their own may call at the same time, on objects of their own, and on
 * the same model and the same tokenizer as long as nobody changes or destroys these: a session, a generation or
 * wn_model_logits of each thread is made with the thread's own context. wn_context_cancel may be called from any thread
 * and from signal handlers.
 *
 * The library's own threads take part in calls and sleep between them: 0.2 ms after a call none of them runs. They take
 * no signals. A process that has computed may fork, while no other thread of it is inside a call; the child computes
 * with threads of its own. dlclose, after everything is destroyed, leaves none behind. (Built with gcc;
 * docs/api.md#threads.)
 *
 * Pointers. One may be NULL only where its comment says so, and an array whose count is 0; every other NULL is
 * WN_ERR_ARGUMENT, or no result. */
#ifndef WINNOW_CONTEXT_H
#define WINNOW_CONTEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/status.h"

WN_STABLE_BEGIN

/* The context; opaque. Functions that neither compute nor load a model take NULL for it too: then only the status says
 * what went wrong. */
typedef struct wn_context wn_context;

/* The importance of a line of the log. */
typedef enum wn_log_level { WN_LOG_DEBUG, WN_LOG_INFO, WN_LOG_WARNING } wn_log_level;

/* `line` has no newline and is borrowed for the call. */
typedef void (*wn_log_fn)(void *user, wn_log_level level, const char *line);

/* The backends of this build, each here and nowhere else; the first is the default. A backend's table is what
 * wn_backend_<name>_for gives (src/backends/backends.h). SEP: the separator between two of them. */
#define WN_BACKENDS(X, SEP)                                                                                            \
  X(cpu) SEP X(ref)                                                                                                    \
  SEP X(guard)                                                                                                         \
  SEP X(cuda)

/* Every struct of options begins with its size, which the caller sets: wn_eval_options o = {.size = sizeof o, .batch =
 * 4}, or wn_prune_options_init(&o, sizeof o) where defaults are not zeros. So a program built against an older header,
 * whose struct is shorter, still works: a field that it lacks is 0, the default. A size of 0, or an impossible one, is
 * WN_ERR_ARGUMENT; a longer struct that uses fields unknown to the library is WN_ERR_UNSUPPORTED. */
typedef struct wn_context_options {
  size_t size;         /* sizeof the struct */
  int threads;         /* 0: the CPUs this process may run on (affinity, cgroup), at most OMP_NUM_THREADS. Else exactly
                          so many */
  const char *backend; /* NULL or "cpu": the fast CPU backend; "ref": double accumulation; "guard": ref on arrays that
                          only operations can touch, for tests of the library (docs/adding-a-backend.md);
                          "cuda": a GPU (docs/cuda.md), which is looked for when the context first computes or loads
                          a model, and not here */
  wn_log_fn log;       /* NULL: no log */
  void *log_user;
  double
      dead_keys; /* dead-key skipping of selective attention (docs/selective-attention.md): the share of a row's sum of
                    exponentials that its skipped keys may hold together, up to 0.5. 0: the default, 2^-24, or what
                    the environment variable WINNOW_DEAD_KEYS says ("0": no key is skipped); negative: none is */
  int64_t exact_rows; /* from how many rows of activations at a time the products of packed weights (GGUF) take them as
                         they are, from panels of float weights; fewer rows are rounded to 8 bits in blocks of 32, or
                         to bfloat16 where a matrix is all in it. 1: always. 0: the default, or what the environment
                         variable WINNOW_EXACT_ROWS says. The default is the backend's choice: never for matrices in
                         blocks on CPUs with AVX2 (with AVX-512: where there is VNNI) and for matrices in BF16 on CPUs
                         with AVX512_BF16, else from 33 rows on */
} wn_context_options;

/* options may be NULL for the defaults. The environment variable WINNOW_ISA (ref, avx2, avx512; on ARM ref, neon)
 * forces the instruction set of the cpu backend; one that this machine lacks is WN_ERR_UNSUPPORTED. On failure *out is
 * still a context, if one could be allocated, so that wn_context_error() can be read; it can only be destroyed. */
wn_status wn_context_create(const wn_context_options *options, wn_context **out);
void wn_context_destroy(wn_context *ctx); /* NULL is allowed */

/* The detail of the last failure: one line without a newline; "" when none. Owned by ctx. */
const char *wn_context_error(const wn_context *ctx);
int wn_context_threads(const wn_context *ctx);
const char *wn_context_backend(const wn_context *ctx);

/* Asks a running wn_train_run, wn_eval or generation to stop before its next step. Async-signal-safe.
 * wn_context_cancelled() reads the flag. A program that handles signals while the library computes must handle them on
 * a separate stack (sigaltstack, SA_ONSTACK): kernels that oneDNN generates use the stack pointer as a register, and a
 * handler's frame on the ordinary stack would overwrite data. */
void wn_context_cancel(wn_context *ctx);
void wn_context_resume(wn_context *ctx); /* withdraws the request, after it has been answered */
int wn_context_cancelled(const wn_context *ctx);

/* Properties of this build and machine. Strings and arrays are static or owned by ctx. */
typedef struct wn_build_info {
  const char *version;          /* wn_version() */
  const char *commit;           /* short hash, "unknown" outside a repository */
  const char *compiler;         /* name and version */
  const char *build_type;       /* Release, Debug, ... */
  const char *cpu_name;         /* as the CPU states it */
  const char *isa;              /* instruction set in use: ref, avx2, avx512 */
  const char *const *features;  /* CPU features found, NULL-terminated */
  const char *const *backends;  /* NULL-terminated */
  const char *const *libraries; /* "oneDNN 2.6.3", ..., NULL-terminated */
  const char *bfloat16;         /* what multiplies with train.precision bfloat16: "AMX" (its tiles), "AVX512_BF16",
                                   "tensor cores" (cuda) or "float32", of rounded numbers */
  const char *prompts;          /* what multiplies prompts with weights in blocks (GGUF): "AMX" (its tiles),
                                   "AVX512_VNNI" or "AVX2", integers, each with the results that a row has alone, or
                                   "float32" */
  const char *without;          /* optional parts that this build lacks: "MPI, CUDA" (docs/api.md); "": none */
} wn_build_info;
wn_status wn_build_info_get(wn_context *ctx, wn_build_info *out);

/* Bytes and allocations of winnow's allocator in this process: current ones, the peak of bytes, and the number of
 * allocations since the start, which the "no allocation inside a step" tests count. */
typedef struct wn_memory_info {
  unsigned long long live_bytes, peak_bytes, live_allocations, total_allocations;
} wn_memory_info;
void wn_memory_info_get(wn_memory_info *out);
void wn_memory_peak_reset(void); /* peak_bytes := live_bytes */

/* Writes a file of `bytes` bytes as the library writes its own: under a temporary name in the same folder, synced and
 * renamed, so that a failure never leaves half a file; one that is replaced keeps its permissions. A device or a pipe
 * (/dev/stdout) is written to directly; a symbolic link is followed. */
wn_status wn_file_save(wn_context *ctx, const char *path, const void *data, size_t bytes);

/* "4096", "2MiB", "1.5GB" (kB, MB, GB: powers of ten) as a number of bytes, above 0. False: not a number of bytes. */
bool wn_bytes_parse(const char *text, double *out);

WN_API_END

WN_EXPERIMENTAL_BEGIN

/* A GPU that backend "cuda" can use. */
typedef struct wn_device_info {
  char name[128];                   /* as the device states it */
  int major, minor;                 /* its compute capability */
  unsigned long long memory_bytes;  /* all of its memory */
  int driver_version, cuda_version; /* 13000 is 13.0: what the driver serves, and what this build was made with */
  const char *products;             /* what multiplies: "cuBLASLt 13.1.0", or "winnow's own kernels" */
} wn_device_info;
/* The device of this number: 0 is the one that computes; the environment variable CUDA_VISIBLE_DEVICES says which there
 * are and in which order. WN_ERR_ARGUMENT: there are only so many. WN_ERR_UNSUPPORTED: there is none, and the error
 * says why (no module, no driver, no device). */
wn_status wn_device_info_get(wn_context *ctx, int index, wn_device_info *out);

/* The path of the file that the library has mapped where `address` lies; NULL: none. A mapped file that another program
 * shortens while it is in use ends in SIGBUS: a program that handles it names the file by si_addr. Async-signal-safe.
 */
const char *wn_mapped_file(const void *address);

/* Reads a whole text, with a NUL after it that *bytes does not count; freed with wn_text_free. path: a regular file, a
 * pipe, a FIFO that something opens for writing within 5 seconds, or "-", standard input. A folder, a socket and a
 * device other than a terminal and /dev/null are WN_ERR_IO. More than `limit` bytes (0: WN_TEXT_LIMIT) are
 * WN_ERR_FORMAT. */
#define WN_TEXT_LIMIT ((size_t)1 << 30)
wn_status wn_file_load(wn_context *ctx, const char *path, size_t limit, char **text, size_t *bytes);

/* text, whose bytes may be anything, as one line of UTF-8 for a terminal or a log, with a NUL after it: line ends and
 * tabs become spaces; control characters, those that reverse the direction of a text, and bytes that are not UTF-8
 * become "\\x1b". What does not fit in `bytes` is left off. Returns the length. Every message of the library has passed
 * through it. */
size_t wn_line_escape(const char *text, char *out, size_t bytes);

WN_API_END
#endif
