/* Finds the transport. A process that was started alone opens none and loads nothing. */
#include "dist/transport.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/module.h"
#include "dist/group.h"

/* The launchers' environment variables: Open MPI's mpirun, those of MPICH and Intel, and srun used as an MPI launcher.
 * How many processes there are, what else must be set, and this process's number on its machine. */
static const char *const launchers[][3] = {{"OMPI_COMM_WORLD_SIZE", "", "OMPI_COMM_WORLD_LOCAL_RANK"},
                                           {"PMI_SIZE", "", "MPI_LOCALRANKID"},
                                           {"MV2_COMM_WORLD_SIZE", "", "MV2_COMM_WORLD_LOCAL_RANK"},
                                           {"SLURM_NTASKS", "PMIX_RANK", "SLURM_LOCALID"}};

/* How many processes the launcher has started. */
static long transport_started(size_t *launcher) {
  for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
    const char *text = getenv(launchers[i][0]);
    const long n = text ? strtol(text, NULL, 10) : 0;
    if (n < 1 || (launchers[i][1][0] && !getenv(launchers[i][1]))) continue;
    *launcher = i;
    return n;
  }
  return 1;
}

int wn_dist_place(const wn_context *ctx) {
  size_t launcher;
  const char *text = wn_dist_size(ctx) > 1 && transport_started(&launcher) > 1 ? getenv(launchers[launcher][2]) : NULL;
  const long n = text ? strtol(text, NULL, 10) : 0;
  return n > 0 && n < 1 << 20 ? (int)n : 0;
}

wn_status wn_dist_transport_open(wn_context *ctx, const struct wn_dist_transport **out, void **module) {
  size_t launcher = 0;
  const long started = transport_started(&launcher);
  *out = NULL;
  *module = NULL;
  if (started <= 1) return WN_OK;
#if WN_HAVE_MPI
  char why[512];
  *module = wn_module_open("winnow-mpi.so", why, sizeof why);
  if (!*module)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "started as one of %ld processes (%s), but %s", started,
                   launchers[launcher][0], why);
  const wn_dist_module_fn table = (wn_dist_module_fn)(uintptr_t)dlsym(*module, WN_DIST_SYMBOL);
  *out = table ? table() : NULL;
  if (*out && (*out)->version == WN_DIST_TRANSPORT) return WN_OK;
  *out = NULL;
  return wn_fail(ctx, WN_ERR_UNSUPPORTED, "winnow-mpi.so belongs to another version of winnow");
#else
  return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                 "started as one of %ld processes (%s), but this build has no MPI (Debian: libopenmpi-dev; cmake "
                 "-DWINNOW_MPI=ON)",
                 started, launchers[launcher][0]);
#endif
}
