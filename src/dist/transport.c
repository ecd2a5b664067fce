/* Finds the transport. A process that was started alone opens none and loads nothing. */
#include "dist/transport.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/module.h"
#include "dist/group.h"

/* How many processes the launcher has started, from its environment variables: Open MPI's mpirun, those of MPICH and
 * Intel, and srun used as an MPI launcher. */
static long transport_started(const char **launcher) {
  static const char *const names[][2] = {
      {"OMPI_COMM_WORLD_SIZE", ""}, {"PMI_SIZE", ""}, {"MV2_COMM_WORLD_SIZE", ""}, {"SLURM_NTASKS", "PMIX_RANK"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const char *text = getenv(names[i][0]);
    const long n = text ? strtol(text, NULL, 10) : 0;
    if (n < 1 || (names[i][1][0] && !getenv(names[i][1]))) continue;
    *launcher = names[i][0];
    return n;
  }
  return 1;
}

wn_status wn_dist_transport_open(wn_context *ctx, const struct wn_dist_transport **out, void **module) {
  const char *launcher = NULL;
  const long started = transport_started(&launcher);
  *out = NULL;
  *module = NULL;
  if (started <= 1) return WN_OK;
#if WN_HAVE_MPI
  char why[512];
  *module = wn_module_open("winnow-mpi.so", why, sizeof why);
  if (!*module)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "started as one of %ld processes (%s), but %s", started, launcher, why);
  const wn_dist_module_fn table = (wn_dist_module_fn)(uintptr_t)dlsym(*module, WN_DIST_SYMBOL);
  *out = table ? table() : NULL;
  if (*out && (*out)->version == WN_DIST_TRANSPORT) return WN_OK;
  *out = NULL;
  return wn_fail(ctx, WN_ERR_UNSUPPORTED, "winnow-mpi.so belongs to another version of winnow");
#else
  return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                 "started as one of %ld processes (%s), but this build has no MPI (Debian: libopenmpi-dev; cmake "
                 "-DWINNOW_MPI=ON)",
                 started, launcher);
#endif
}
