// Stands between edgepack-device and libc: one call in it fails as the kernel could have it fail,
// and the clocks tell what a test wants. Everything else goes through. Any other program that the
// environment reaches is left alone.
//
//   EDGEPACK_CALLS=<file>    counts every call, of all processes, in uint32s: [0] is the faults
//                            that happened, then one for each name of `calls`, below
//   EDGEPACK_INJECT=<call> <k> <fault> [<call>...]
//                            the k-th <call> meets the fault; each of the calls behind it, too,
//                            from then on. <fault>: an errno, "short", or "clock<seconds>": the
//                            real-time clock leaps by so much before that call
//   EDGEPACK_TIMES=<n>       the fault happens at most so often
//   EDGEPACK_CLOCK=<seconds> the real-time clock stands at this time, since 1970
//   EDGEPACK_FREE=<bytes>    so many are free on every file system
//   EDGEPACK_LINKS=no        hard links are refused, as on Android
//   EDGEPACK_HURRY=<n>       for `run --supervise`: time goes n times as fast
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CALLS(X)                                                                                 \
  X(access)                                                                                      \
  X(chdir) X(create) X(open) X(fopen) X(read) X(write) X(send) X(pread) X(pwrite) X(lseek) X(fsync)      \
      X(ftruncate) X(fchmod) X(futimens) X(stat) X(fstat) X(lstat) X(fstatat) X(statvfs)         \
          X(readlink) X(readlinkat) X(fdopendir) X(readdir) X(mkdir) X(mkdirat) X(linkat)        \
              X(symlinkat) X(renameat) X(unlinkat) X(flock) X(fcntl) X(fork) X(execv) X(wait4)   \
                  X(waitpid) X(pipe2) X(poll) X(nanosleep) X(sigtimedwait) X(signalfd) X(socket) \
                      X(bind) X(setsockopt) X(sendto) X(recvmsg) X(getrandom) X(setpgid) X(dup2) \
                          X(uname) X(realpath) X(fgetpwent) X(clock) X(sync_file_range)

enum call {
#define X(name) call_##name,
  CALLS(X)
#undef X
      call_count
};
static const char *const names[] = {
#define X(name) #name,
    CALLS(X)
#undef X
};

static int active;
static volatile uint32_t *counts;
static int fault_call = -1, fault_number;
static long leap_s;
static uint32_t fault_at, times = UINT32_MAX;
static int is_short;
static char later[call_count];
static int64_t fixed_clock = -1;
static int64_t free_bytes = -1;
static int no_links;
static int hurry = 1;

static int find(const char *name) {
  for (int i = 0; i < call_count; ++i)
    if (strcmp(names[i], name) == 0) return i;
  _exit(99);
}

static void *libc(const char *name) {
  void *const found = dlsym(RTLD_NEXT, name);
  if (found == NULL) _exit(98);
  return found;
}
#define REAL(symbol)                      \
  static __typeof__(symbol) *real = NULL; \
  if (real == NULL) real = libc(#symbol)

__attribute__((constructor)) static void begin(void) {
  char self[4096] = "", words[4096] = "";
  const char *value;
  ssize_t (*const link)(const char *, char *, size_t) = libc("readlink");
  if (link("/proc/self/exe", self, sizeof self - 1) < 0) return;
  const char *const program = strrchr(self, '/');
  if (program == NULL || strncmp(program, "/edgepack-device", 16) != 0) return;
  active = 1;
  int (*const opens)(const char *, int, ...) = libc("open");
  if ((value = getenv("EDGEPACK_CALLS")) != NULL) {
    const int fd = opens(value, O_RDWR | O_CLOEXEC);
    counts = mmap(NULL, 4 * (1 + call_count), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (counts == MAP_FAILED) _exit(97);
    close(fd);
  }
  if ((value = getenv("EDGEPACK_INJECT")) != NULL) {
    char *const text = strdup(value);
    fault_call = find(strtok(text, " "));
    fault_at = (uint32_t)atoi(strtok(NULL, " "));
    const char *const fault = strtok(NULL, " ");
    is_short = strcmp(fault, "short") == 0;
    if (strncmp(fault, "clock", 5) == 0) {
      leap_s = atol(fault + 5);
    } else {
      fault_number = atoi(fault);
    }
    for (const char *name; (name = strtok(NULL, " ")) != NULL;) later[find(name)] = 1;
    free(text);
  }
  if ((value = getenv("EDGEPACK_TIMES")) != NULL) times = (uint32_t)atoi(value);
  if ((value = getenv("EDGEPACK_CLOCK")) != NULL) fixed_clock = atoll(value);
  if ((value = getenv("EDGEPACK_FREE")) != NULL) free_bytes = atoll(value);
  no_links = getenv("EDGEPACK_LINKS") != NULL;
  if ((value = getenv("EDGEPACK_HURRY")) != NULL) {
    ssize_t (*const reads)(int, void *, size_t) = libc("read");
    const int fd = opens("/proc/self/cmdline", O_RDONLY);
    const ssize_t size = reads(fd, words, sizeof words);
    close(fd);
    if (size > 0 && memmem(words, (size_t)size, "--supervise", 11) != NULL) hurry = atoi(value);
  }
}

// Whether this call meets the fault, whose errno is set then.
static int meets(enum call call) {
  if (!active || counts == NULL) return 0;
  const uint32_t number = __atomic_add_fetch(&counts[1 + call], 1, __ATOMIC_SEQ_CST);
  if (fault_call < 0) return 0;
  const uint32_t before = counts[0];
  if (!(call == (enum call)fault_call && number == fault_at) && !(before != 0 && later[call]))
    return 0;
  if (before >= times) return 0;
  __atomic_add_fetch(&counts[0], 1, __ATOMIC_SEQ_CST);
  if (is_short || leap_s != 0) return 0;
  errno = fault_number;
  return 1;
}

static size_t cut(size_t size, uint32_t before) {
  const int now = is_short && counts != NULL && counts[0] != before;
  return now && size > 1 ? size / 2 : size;
}

#define FAIL(call, value) \
  if (meets(call_##call)) return value
#define PLAIN(type, call, symbol, value, parameters, arguments) \
  type symbol parameters {                                      \
    REAL(symbol);                                               \
    FAIL(call, value);                                          \
    return real arguments;                                      \
  }

PLAIN(int, access, access, -1, (const char *a, int b), (a, b))
PLAIN(int, chdir, chdir, -1, (const char *a), (a))
PLAIN(FILE *, fopen, fopen64, NULL, (const char *a, const char *b), (a, b))
PLAIN(off64_t, lseek, lseek64, -1, (int a, off64_t b, int c), (a, b, c))
PLAIN(int, fsync, fsync, -1, (int a), (a))
PLAIN(int, ftruncate, ftruncate64, -1, (int a, off64_t b), (a, b))
PLAIN(int, fchmod, fchmod, -1, (int a, mode_t b), (a, b))
PLAIN(int, futimens, futimens, -1, (int a, const struct timespec b[2]), (a, b))
PLAIN(int, stat, stat64, -1, (const char *a, struct stat64 *b), (a, b))
PLAIN(int, lstat, lstat64, -1, (const char *a, struct stat64 *b), (a, b))
PLAIN(int, fstat, fstat64, -1, (int a, struct stat64 *b), (a, b))
PLAIN(int, fstatat, fstatat64, -1, (int a, const char *b, struct stat64 *c, int d), (a, b, c, d))
PLAIN(ssize_t, readlink, readlink, -1, (const char *a, char *b, size_t c), (a, b, c))
PLAIN(ssize_t, readlinkat, readlinkat, -1, (int a, const char *b, char *c, size_t d), (a, b, c, d))
PLAIN(DIR *, fdopendir, fdopendir, NULL, (int a), (a))
PLAIN(struct dirent64 *, readdir, readdir64, NULL, (DIR * a), (a))
PLAIN(int, mkdir, mkdir, -1, (const char *a, mode_t b), (a, b))
PLAIN(int, mkdirat, mkdirat, -1, (int a, const char *b, mode_t c), (a, b, c))
PLAIN(int, symlinkat, symlinkat, -1, (const char *a, int b, const char *c), (a, b, c))
PLAIN(int, renameat, renameat, -1, (int a, const char *b, int c, const char *d), (a, b, c, d))
PLAIN(int, unlinkat, unlinkat, -1, (int a, const char *b, int c), (a, b, c))
PLAIN(int, flock, flock, -1, (int a, int b), (a, b))
PLAIN(pid_t, fork, fork, -1, (void), ())
PLAIN(int, execv, execv, -1, (const char *a, char *const b[]), (a, b))
PLAIN(pid_t, wait4, wait4, -1, (pid_t a, int *b, int c, struct rusage *d), (a, b, c, d))
PLAIN(pid_t, waitpid, waitpid, -1, (pid_t a, int *b, int c), (a, b, c))
PLAIN(int, pipe2, pipe2, -1, (int a[2], int b), (a, b))
PLAIN(int, signalfd, signalfd, -1, (int a, const sigset_t *b, int c), (a, b, c))
PLAIN(int, socket, socket, -1, (int a, int b, int c), (a, b, c))
PLAIN(int, bind, bind, -1, (int a, const struct sockaddr *b, socklen_t c), (a, b, c))
PLAIN(int, setsockopt, setsockopt, -1, (int a, int b, int c, const void *d, socklen_t e),
      (a, b, c, d, e))
PLAIN(ssize_t, sendto, sendto, -1,
      (int a, const void *b, size_t c, int d, const struct sockaddr *e, socklen_t f),
      (a, b, c, d, e, f))
PLAIN(ssize_t, recvmsg, recvmsg, -1, (int a, struct msghdr *b, int c), (a, b, c))
PLAIN(ssize_t, getrandom, getrandom, -1, (void *a, size_t b, unsigned c), (a, b, c))
PLAIN(int, setpgid, setpgid, -1, (pid_t a, pid_t b), (a, b))
PLAIN(int, dup2, dup2, -1, (int a, int b), (a, b))
PLAIN(int, uname, uname, -1, (struct utsname * a), (a))
PLAIN(char *, realpath, realpath, NULL, (const char *a, char *b), (a, b))
PLAIN(struct passwd *, fgetpwent, fgetpwent, NULL, (FILE * a), (a))
PLAIN(int, sync_file_range, sync_file_range, -1, (int a, off64_t b, off64_t c, unsigned d),
      (a, b, c, d))

int statvfs64(const char *path, struct statvfs64 *system) {
  REAL(statvfs64);
  FAIL(statvfs, -1);
  const int result = real(path, system);
  if (result == 0 && free_bytes >= 0) {
    system->f_bavail = (fsblkcnt64_t)free_bytes;
    system->f_frsize = 1;
  }
  return result;
}

int linkat(int from, const char *name, int to, const char *fresh, int flags) {
  REAL(linkat);
  FAIL(linkat, -1);
  if (active && no_links) {
    errno = EACCES;
    return -1;
  }
  return real(from, name, to, fresh, flags);
}

int open64(const char *path, int flags, ...) {
  REAL(open64);
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if (meets(flags & O_CREAT ? call_create : call_open)) return -1;
  return real(path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...) {
  REAL(openat64);
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if (meets(flags & O_CREAT ? call_create : call_open)) return -1;
  return real(folder, path, flags, mode);
}

int fcntl64(int fd, int what, ...) {
  REAL(fcntl64);
  va_list rest;
  va_start(rest, what);
  const long value = va_arg(rest, long);
  va_end(rest);
  FAIL(fcntl, -1);
  return real(fd, what, value);
}

#define TRANSFER(call, symbol, parameters, arguments)       \
  ssize_t symbol parameters {                               \
    REAL(symbol);                                           \
    const uint32_t before = counts != NULL ? counts[0] : 0; \
    FAIL(call, -1);                                         \
    size = cut(size, before);                               \
    return real arguments;                                  \
  }
TRANSFER(read, read, (int fd, void *data, size_t size), (fd, data, size))
TRANSFER(pread, pread64, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))
TRANSFER(pwrite, pwrite64, (int fd, const void *data, size_t size, off64_t at),
         (fd, data, size, at))

// To a file, or into a pipe: that is never full nor read-only.
ssize_t write(int fd, const void *data, size_t size) {
  REAL(write);
  int (*const look)(int, struct stat *) = libc("fstat");
  struct stat status;
  const int into_file = look(fd, &status) == 0 && S_ISREG(status.st_mode);
  const uint32_t before = counts != NULL ? counts[0] : 0;
  if (meets(into_file ? call_write : call_send)) return -1;
  return real(fd, data, cut(size, before));
}

static void divide(struct timespec *time) {
  const int64_t ns = ((int64_t)time->tv_sec * 1000000000 + time->tv_nsec) / hurry;
  time->tv_sec = ns / 1000000000;
  time->tv_nsec = ns % 1000000000;
}

int poll(struct pollfd *fds, nfds_t count, int timeout_ms) {
  REAL(poll);
  FAIL(poll, -1);
  return real(fds, count, timeout_ms > 0 ? (timeout_ms + hurry - 1) / hurry : timeout_ms);
}

int nanosleep(const struct timespec *time, struct timespec *left) {
  REAL(nanosleep);
  struct timespec shorter = *time;
  divide(&shorter);
  if (left != NULL) *left = *time;
  FAIL(nanosleep, -1);
  return real(&shorter, NULL);
}

int sigtimedwait(const sigset_t *set, siginfo_t *info, const struct timespec *time) {
  REAL(sigtimedwait);
  struct timespec shorter = *time;
  divide(&shorter);
  FAIL(sigtimedwait, -1);
  return real(set, info, &shorter);
}

// The real-time clock, as it is told to be.
static time_t told(time_t now) {
  (void)meets(call_clock);
  if (fixed_clock >= 0) now = fixed_clock;
  if (leap_s != 0 && counts != NULL && counts[0] != 0) now += leap_s;
  return now;
}

int clock_gettime(clockid_t which, struct timespec *time) {
  REAL(clock_gettime);
  const int result = real(which, time);
  if (result != 0 || !active) return result;
  if (which == CLOCK_REALTIME) {
    time->tv_sec = told(time->tv_sec);
  } else if (which == CLOCK_MONOTONIC && hurry != 1) {
    const int64_t ns = ((int64_t)time->tv_sec * 1000000000 + time->tv_nsec) * hurry;
    time->tv_sec = ns / 1000000000;
    time->tv_nsec = ns % 1000000000;
  }
  return result;
}

time_t time(time_t *result) {
  struct timespec now;
  int (*const real)(clockid_t, struct timespec *) = libc("clock_gettime");
  if (real(CLOCK_REALTIME, &now) != 0) return -1;
  if (active) now.tv_sec = told(now.tv_sec);
  if (result != NULL) *result = now.tv_sec;
  return now.tv_sec;
}
