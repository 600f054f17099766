#include "confine.h"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fcntl.h>
#include <grp.h>
#include <initializer_list>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

namespace edgepack::device {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kArch = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArch = AUDIT_ARCH_AARCH64;
#elif defined(__arm__)
constexpr std::uint32_t kArch = AUDIT_ARCH_ARM;
#else
constexpr std::uint32_t kArch = 0;  // of none: Confine says no
#endif

// Calls that are not there, instead of forbidden, so that a C library takes older ones.
constexpr std::initializer_list<std::uint32_t> kUnknown = {437 /* openat2 */,
                                                           425 /* io_uring_setup */};

constexpr std::initializer_list<std::uint32_t> kForbidden = {
    // Files and folders. Those of a descriptor work on one that was opened for reading, too.
    SYS_renameat2,
    SYS_unlinkat,
    SYS_mkdirat,
    SYS_mknodat,
    SYS_linkat,
    SYS_symlinkat,
    SYS_fchmodat,
    SYS_fchmod,
    SYS_fchownat,
    SYS_fchown,
    SYS_truncate,
    SYS_utimensat,
    SYS_setxattr,
    SYS_lsetxattr,
    SYS_fsetxattr,
    SYS_removexattr,
    SYS_lremovexattr,
    SYS_fremovexattr,
    SYS_open_by_handle_at,
    452,  // fchmodat2
#ifdef SYS_renameat
    SYS_renameat,
#endif
#ifdef SYS_rename
    SYS_rename,
    SYS_unlink,
    SYS_mkdir,
    SYS_rmdir,
    SYS_mknod,
    SYS_link,
    SYS_symlink,
    SYS_chmod,
    SYS_chown,
    SYS_lchown,
    SYS_creat,
#endif
#ifdef SYS_utimes
    SYS_utimes,
    SYS_futimesat,
#endif
#ifdef SYS_truncate64
    SYS_truncate64,
#endif
#ifdef SYS_utimensat_time64
    SYS_utimensat_time64,
#endif
    // The network, and other processes.
    SYS_socket,
    SYS_kill,
    SYS_tkill,
    SYS_tgkill,
    SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_kcmp,
    424,  // pidfd_send_signal
    438,  // pidfd_getfd
    440,  // process_madvise
    // The kernel.
    SYS_unshare,
    SYS_setns,
    SYS_mount,
    SYS_umount2,
    SYS_chroot,
    SYS_pivot_root,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_add_key,
    SYS_request_key,
    SYS_keyctl,
    SYS_mq_open,
    SYS_shmget,
    SYS_msgget,
    SYS_semget,
};

sock_filter Load(std::size_t offset) {
  return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset));
}

sock_filter Return(std::uint32_t what) { return BPF_STMT(BPF_RET | BPF_K, what); }

std::uint32_t ErrorOf(int number) {
  return SECCOMP_RET_ERRNO | (static_cast<std::uint32_t>(number) & SECCOMP_RET_DATA);
}

/// The lower half of an argument.
std::size_t Argument(std::size_t index) {
  return offsetof(seccomp_data, args) + index * sizeof(std::uint64_t);
}

/// Refuses `call` if its argument number `flags` opens for more than reading.
void ForbidWriting(std::uint32_t call, std::size_t flags, std::vector<sock_filter>* filter) {
  constexpr std::uint32_t kWrites = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC;
  filter->push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 4));
  filter->push_back(Load(Argument(flags)));
  filter->push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, kWrites, 0, 1));
  filter->push_back(Return(ErrorOf(EACCES)));
  filter->push_back(Return(SECCOMP_RET_ALLOW));
}

void Forbid(std::uint32_t call, int error, std::vector<sock_filter>* filter) {
  filter->push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
  filter->push_back(Return(ErrorOf(error)));
}

}  // namespace

bool GiveUpRoot(const std::string& program) {
  constexpr uid_t kNobody = 65534;
  if (geteuid() != 0) return true;
  if (setgroups(0, nullptr) != 0 || setgid(kNobody) != 0 || setreuid(kNobody, 0) != 0) return false;
  // Asked as the real user.
  if (access(program.c_str(), R_OK | X_OK) == 0) return setuid(kNobody) == 0;
  if (setreuid(0, 0) != 0 || setgid(0) != 0) return false;
  // What root starts has them again, unless it is to have no new rights.
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  const std::array<__user_cap_data_struct, 2> none = {};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         syscall(SYS_capset, &header, none.data()) == 0;
}

bool Confine() {
  if (kArch == 0) return false;
  std::vector<sock_filter> filter = {
      // A call by another architecture's numbers would be another one.
      Load(offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArch, 1, 0),
      Return(ErrorOf(EPERM)),
      Load(offsetof(seccomp_data, nr)),
  };
#ifdef __x86_64__
  constexpr std::uint32_t kX32 = 0x40000000;  // the same numbers, and this bit
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, kX32, 0, 1));
  filter.push_back(Return(ErrorOf(EPERM)));
#endif
  for (const std::uint32_t call : kForbidden) Forbid(call, EPERM, &filter);
  for (const std::uint32_t call : kUnknown) Forbid(call, ENOSYS, &filter);
#ifdef SYS_open
  ForbidWriting(SYS_open, 1, &filter);
#endif
  ForbidWriting(SYS_openat, 2, &filter);
  filter.push_back(Return(SECCOMP_RET_ALLOW));
  const sock_fprog program = {static_cast<std::uint16_t>(filter.size()), filter.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

bool CanConfine() {
  // A filter at no address: EINVAL where there are none (seccomp(2)).
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, nullptr, 0, 0) != 0 && errno == EFAULT;
}

}  // namespace edgepack::device
