/* winnow: the context. Holds the backend, the thread count, the log callback and the detail of the last error.
 *
 * Threads. One thread at a time may use a context or an object made from it. Such an object borrows the context and
 * must be destroyed before it. Threads that each have a context may call at the same time, on objects of their own.
 * They may share a model and a tokenizer as long as nobody changes or destroys these: each thread then makes its
 * sessions and generations, and calls wn_model_logits, with its own context. wn_context_cancel may be called from any
 * thread and from signal handlers.
 *
 * The library's own threads work during calls and sleep between them: 0.2 ms after a call none of them runs. They take
 * no signals. A process may fork after it has computed, while no thread of it is inside a call; the child computes with
 * threads of its own. dlclose, after everything is destroyed, leaves no thread behind. (This holds of builds with gcc;
 * docs/api.md#threads.)
 *
 * Pointers. A pointer may be NULL only where its comment says so, or where it is an array whose count is 0. Any other
 * NULL gives WN_ERR_ARGUMENT, or no result from a function without a status. */
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

/* The backends of this build; the only list of them. The first is the default. wn_backend_<name>_for gives a backend's
 * table (src/backends/backends.h). SEP: the separator between two of them. */
#define WN_BACKENDS(X, SEP)                                                                                            \
  X(cpu) SEP X(ref)                                                                                                    \
  SEP X(guard)                                                                                                         \
  SEP X(cuda)

/* Every struct of options begins with its size, which the caller sets: wn_eval_options o = {.size = sizeof o, .batch =
 * 4}, or wn_prune_options_init(&o, sizeof o) where defaults are not zeros. So a program built with an older header,
 * whose struct is shorter, still works: a field that it lacks is 0, the default. A size of 0, or an impossible one, is
 * WN_ERR_ARGUMENT. A longer struct that uses fields unknown to the library is WN_ERR_UNSUPPORTED. In C a call can make
 * its own: WN_OPTIONS(wn_session_options, .sequences = 2). */
#define WN_OPTIONS(type, ...) (&(type){.size = sizeof(type), __VA_ARGS__})
typedef struct wn_context_options {
  size_t size;         /* sizeof the struct */
  int threads;         /* 0: the CPUs this process may run on (affinity, cgroup), at most OMP_NUM_THREADS; fewer while
                          other programs run and fewer get more done. Else exactly so many */
  const char *backend; /* NULL or "cpu": the fast CPU backend; "ref": double accumulation; "guard": ref on arrays that
                          only operations can touch, for tests of the library (docs/adding-a-backend.md);
                          "cuda": a GPU (docs/cuda.md), which is looked for when the context first computes or loads
                          a model, and not here */
  wn_log_fn log;       /* NULL: no log */
  void *log_user;
  double dead_keys; /* dead-key skipping of selective attention (docs/selective-attention.md): the share of a row's sum
                       of exponentials that all keys skipped for it may hold together, up to 0.5. 0: what the
                       environment variable WINNOW_DEAD_KEYS says ("0": no key is skipped), else the default 2^-24;
                       negative: no key is skipped */
  int64_t exact_rows; /* products with packed weights (GGUF): from this many rows of activations on, the activations
                         stay float32 and the weights are unpacked to float. Fewer rows are rounded, to 8 bits in blocks
                         of 32, or to bfloat16 if the whole matrix is in it. 1: never rounded. 0: the backend's choice:
                         always rounded for matrices in blocks on CPUs with AVX2 (with AVX-512: those with VNNI) and for
                         matrices in BF16 on CPUs with AVX512_BF16, else exact from 33 rows on; on cuda from 9 rows of a
                         prompt on, weights and activations to bfloat16. Other than 0 also leaves
                         the attention of prompts over half floats in float32, which otherwise rounds to bfloat16 where
                         the CPU has AVX512_BF16 and products with the weights round as well */
  const char *pre;    /* how byte-pair tokenizers of GGUF files that do not say it (tokenizer.ggml.pre) split texts into
                         words: "llama-bpe", "qwen2", "default", ... (docs/tokenizers.md). NULL: such files are refused
                         */
} wn_context_options;

/* options may be NULL for the defaults. The environment variable WINNOW_ISA (ref, avx2, avx512; on ARM ref, neon)
 * forces the instruction set of the cpu backend; one that this machine lacks is WN_ERR_UNSUPPORTED. After a failure
 * *out is still a context, if one could be allocated: wn_context_error() can be read from it, and it can be
 * destroyed. */
wn_status wn_context_create(const wn_context_options *options, wn_context **out);
void wn_context_destroy(wn_context *ctx); /* NULL is allowed */

/* The detail of the last failure: one line without a newline; "" when none. Owned by ctx. */
const char *wn_context_error(const wn_context *ctx);
int wn_context_threads(const wn_context *ctx);
const char *wn_context_backend(const wn_context *ctx);

/* Asks a running wn_train_run, wn_eval or generation to stop before its next step. Async-signal-safe.
 * wn_context_cancelled() reads the flag. A program that handles signals while the library computes must do so on a
 * separate stack (sigaltstack, SA_ONSTACK): kernels generated by oneDNN use the stack pointer as a general register, so
 * a handler's frame on the ordinary stack would overwrite data. */
void wn_context_cancel(wn_context *ctx);
void wn_context_resume(wn_context *ctx); /* withdraws the request, once the call has stopped */
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
  const char *bfloat16; /* what computes products with train.precision bfloat16: "AMX" (its tiles), "AVX512_BF16",
                           "tensor cores" (cuda), or "float32" on rounded numbers */
  const char *prompts;  /* what multiplies prompts with weights in blocks (GGUF): "AMX" (its tiles), "AVX512_VNNI" or
                           "AVX2", which are integer products with the same bits as for one row alone, or "float32" */
  const char *without;  /* optional parts that this build lacks: "MPI, CUDA" (docs/api.md); "": none */
} wn_build_info;
wn_status wn_build_info_get(wn_context *ctx, wn_build_info *out);

/* What winnow's allocator holds in this process: bytes now and at the peak, allocations now, and allocations since the
 * start (by which tests see that a step allocates nothing). */
typedef struct wn_memory_info {
  unsigned long long live_bytes, peak_bytes, live_allocations, total_allocations;
} wn_memory_info;
void wn_memory_info_get(wn_memory_info *out);
void wn_memory_peak_reset(void); /* peak_bytes := live_bytes */

/* Writes a file of `bytes` bytes as the library writes its own: under a temporary name in the same folder, synced and
 * renamed, so that a failure never leaves half a file. A file that is replaced keeps its permissions. A device or a
 * pipe (/dev/stdout) is written to directly; a symbolic link is followed. */
wn_status wn_file_save(wn_context *ctx, const char *path, const void *data, size_t bytes);

/* "4096", "2MiB", "1.5GB" (kB, MB, GB: powers of ten) as a number of bytes, above 0. False: not a number of bytes. */
bool wn_bytes_parse(const char *text, double *out);

WN_API_END

WN_EXPERIMENTAL_BEGIN

/* Memory of the program's own for all that the library allocates, in the whole process: not for maps of files, nor for
 * what the libraries allocate that it uses. Both functions are called by several threads at a time. */
typedef struct wn_allocator {
  size_t size;                                 /* sizeof the struct */
  void *(*allocate)(void *user, size_t bytes); /* of any alignment; NULL: there is none */
  void (*release)(void *user, void *memory, size_t bytes);
  void *user;
} wn_allocator;
/* NULL: the library's own again. WN_ERR_ARGUMENT while it holds memory (wn_memory_info), or without a function. */
wn_status wn_allocator_set(const wn_allocator *allocator);

/* A GPU that backend "cuda" can use. */
typedef struct wn_device_info {
  char name[128];                  /* as the device states it */
  int major, minor;                /* its compute capability */
  unsigned long long memory_bytes; /* all of its memory */
  int driver_version,
      cuda_version;     /* 13000 is 13.0: the CUDA version that the driver supports, and that of this build */
  const char *products; /* what computes matrix products: "cuBLASLt 13.1.0", or "winnow's own kernels" */
} wn_device_info;
/* Device number `index`. Device 0 is the one that computes; the environment variable CUDA_VISIBLE_DEVICES says which
 * devices there are and in which order. WN_ERR_ARGUMENT: there are fewer. WN_ERR_UNSUPPORTED: there is none, and the
 * error says why (no module, no driver, no device). */
wn_status wn_device_info_get(wn_context *ctx, int index, wn_device_info *out);

/* The path of the file that the library has mapped at `address`; NULL: none. If another program shortens a mapped file,
 * reading it raises SIGBUS: a handler finds the file's name from si_addr. Async-signal-safe. */
const char *wn_mapped_file(const void *address);

/* Reads a whole text and puts a NUL after it, which *bytes does not count; freed with wn_text_free. path: a regular
 * file, a pipe, a FIFO that a writer opens within 5 seconds, or "-" for standard input. A folder, a socket and a device
 * other than a terminal and /dev/null are WN_ERR_IO. More than `limit` bytes (0: WN_TEXT_LIMIT) are WN_ERR_FORMAT. */
#define WN_TEXT_LIMIT ((size_t)1 << 30)
wn_status wn_file_load(wn_context *ctx, const char *path, size_t limit, char **text, size_t *bytes);

/* Turns any bytes into one line of UTF-8 for a terminal or a log, with a NUL after it. Line ends and tabs become
 * spaces. Control characters, characters that reverse the direction of text, and bytes that are not UTF-8 become
 * escapes such as "\\x1b". What does not fit in `bytes` is left off. Returns the length. Every message of the library
 * has passed through it. */
size_t wn_line_escape(const char *text, char *out, size_t bytes);

WN_API_END
#endif
