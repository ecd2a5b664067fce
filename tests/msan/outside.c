/* What the memory sanitizer must be told about libraries that are not instrumented. jansson's memory counts as written
 * (it comes zeroed), and so does the error struct that it fills. fstat, stat and lstat write their struct, which the
 * sanitizer does not know of newer C libraries. */
#include <jansson.h>
#include <sanitizer/msan_interface.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void *zeroed(size_t bytes) {
  return calloc(1, bytes ? bytes : 1);
}

__attribute__((constructor)) static void begin(void) {
  json_set_alloc_funcs(zeroed, free);
}

json_t *__real_json_loadb(const char *text, size_t bytes, size_t flags, json_error_t *error);
json_t *__wrap_json_loadb(const char *text, size_t bytes, size_t flags, json_error_t *error);
json_t *__wrap_json_loadb(const char *text, size_t bytes, size_t flags, json_error_t *error) {
  __msan_check_mem_is_initialized(text, bytes); /* jansson's input is checked */
  __msan_scoped_disable_interceptor_checks();   /* its calls to the C library are not */
  json_t *value = __real_json_loadb(text, bytes, flags, error);
  __msan_scoped_enable_interceptor_checks();
  if (error) __msan_unpoison(error, sizeof *error);
  return value;
}

json_t *__wrap_json_loads(const char *text, size_t flags, json_error_t *error);
json_t *__wrap_json_loads(const char *text, size_t flags, json_error_t *error) {
  return __wrap_json_loadb(text, strlen(text), flags, error);
}

/* The names that the linker uses when files may be large. */
int __real_fstat64(int fd, struct stat *st);
int __wrap_fstat64(int fd, struct stat *st);
int __wrap_fstat64(int fd, struct stat *st) {
  const int result = __real_fstat64(fd, st);
  if (result == 0) __msan_unpoison(st, sizeof *st);
  return result;
}

int __real_stat64(const char *path, struct stat *st);
int __wrap_stat64(const char *path, struct stat *st);
int __wrap_stat64(const char *path, struct stat *st) {
  const int result = __real_stat64(path, st);
  if (result == 0) __msan_unpoison(st, sizeof *st);
  return result;
}

int __real_lstat64(const char *path, struct stat *st);
int __wrap_lstat64(const char *path, struct stat *st);
int __wrap_lstat64(const char *path, struct stat *st) {
  const int result = __real_lstat64(path, st);
  if (result == 0) __msan_unpoison(st, sizeof *st);
  return result;
}
