/* Finds and opens modules. */
#include "base/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/open.h"

/* The folder of the file that holds this code; an empty text if unknown. For the program itself dladdr gives argv[0].
 * If the program was found through PATH, that is a name without a folder, and the current folder may hold another file
 * of that name. */
static void module_own_folder(char own[PATH_MAX]) {
  Dl_info self;
  struct link_map *map = NULL;
  const bool known = dladdr1((void *)(uintptr_t)&wn_module_open, &self, (void **)&map, RTLD_DL_LINKMAP) && map &&
                     map->l_name && map->l_name[0] && realpath(map->l_name, own);
  if (!known && !realpath("/proc/self/exe", own)) own[0] = 0;
  char *slash = strrchr(own, '/');
  if (slash) *slash = 0;
}

/* The first place that has the file; if none has, the first place. */
static bool module_find(const char *file, char *path, size_t bytes) {
  static const char *const places[] = {"", "winnow/", WN_MODULE_FROM_BIN "/"};
  char own[PATH_MAX];
  module_own_folder(own);
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    snprintf(path, bytes, "%s/%s%s", own, places[i], file);
    if (access(path, F_OK) == 0) return true;
  }
  snprintf(path, bytes, "%s/%s", own, file);
  return false;
}

bool wn_module_is_there(const char *file) {
  char path[PATH_MAX + 64];
  return module_find(file, path, sizeof path);
}

void *wn_module_open(const char *file, char *why, size_t bytes) {
  char path[PATH_MAX + 64];
  why[0] = 0;
  if (!module_find(file, path, sizeof path)) {
    snprintf(why, bytes, "%s is not there", path);
    return NULL;
  }
  void *module = wn_open_module(path);
  const char *error = module ? NULL : dlerror();
  if (!module) snprintf(why, bytes, "%s cannot be loaded: %s", path, error ? error : "no reason is given");
  return module;
}
