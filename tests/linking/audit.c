/* For LD_AUDIT: writes every path that the dynamic linker tries, or is asked for, to the file WINNOW_AUDIT. A name
 * without a slash is searched for, in paths that are written when they are tried. */
#include <fcntl.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

unsigned la_version(unsigned version) {
  return version;
}

char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag) {
  (void)cookie, (void)flag;
  const char *path = strchr(name, '/') ? getenv("WINNOW_AUDIT") : NULL;
  const int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
  char line[4096];
  const size_t n = strlen(name) < sizeof line - 1 ? strlen(name) : sizeof line - 1;
  memcpy(line, name, n);
  line[n] = '\n';
  if (fd >= 0 && write(fd, line, n + 1) < 0) line[0] = 0; /* one write: lines of two processes do not mix */
  if (fd >= 0) close(fd);
  return (char *)(uintptr_t)name;
}
