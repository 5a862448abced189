"""Mistakes in permissions, secrets, confinement, egress and backups."""

from __future__ import annotations

from typing import Final

from planted_mistakes.mistake import Mistake

S: Final = "service/holdfast/"

ACCESS_MISTAKES: Final = (
    Mistake(
        name="any-role-suffices",
        file=f"{S}domain/access/permissions.py",
        old="(role is not None and _RANK[role] >= _RANK[least])",
        new="role is not None",
        tests=("tests/domain/access/test_permissions.py",),
    ),
    Mistake(
        name="project-token-valid-everywhere",
        file=f"{S}domain/access/permissions.py",
        old="        if self.only not in (None, project):\n            return False\n",
        new="",
        tests=("tests/domain/access/test_permissions.py",),
    ),
    Mistake(
        name="project-token-of-admin-rules-the-service",
        file=f"{S}domain/access/permissions.py",
        old="return self.is_admin and self.only is None",
        new="return self.is_admin",
        tests=("tests/domain/access/test_permissions.py",),
    ),
    Mistake(
        name="viewer-clones-jobs",
        file=f"{S}api/auth/route_policy.py",
        old='"POST /v1/jobs/{job_id}/clone": Action.SUBMIT,',
        new='"POST /v1/jobs/{job_id}/clone": Action.SEE,',
        tests=("tests/api/test_permissions.py",),
    ),
    Mistake(
        name="member-removes-jobs-of-others",
        file=f"{S}domain/access/permissions.py",
        old="is_own or self._has_role(project, Role.ADMIN)",
        new="is_own or self._has_role(project, Role.MEMBER)",
        tests=("tests/domain/access/test_permissions.py",),
    ),
    Mistake(
        name="session-changes-data-without-csrf-token",
        file=f"{S}api/auth/authentication.py",
        old="if not is_ours or not hmac.compare_digest(csrf.encode(), session.csrf.encode()):",
        new="if not is_ours:",
        tests=("tests/api/test_sessions.py",),
    ),
    Mistake(
        name="worker-token-for-any-job",
        file=f"{S}store/identity/service_tokens.py",
        old="{self._derived(f'worker/{job_id}')}",
        new="{self._derived('worker')}",
        tests=("tests/store/identity/test_service_tokens.py",),
    ),
    Mistake(
        name="secrets-of-another-job-opened",
        file=f"{S}store/secrets.py",
        old="return values if content[self._owner] == owner else None",
        new="return values",
        tests=("tests/store/test_secrets.py",),
    ),
    Mistake(
        name="secrets-in-the-recorded-task",
        file=f"{S}rendering/task.py",
        old="dict.fromkeys(spec.secrets, REDACTED) or None",
        new="dict(spec.secrets) or None",
        tests=("tests/rendering/test_task.py",),
    ),
    Mistake(
        name="confined-job-follows-a-link",
        file=f"{S}host/allowed_folders.py",
        old="real = path.resolve()",
        new="real = path",
        tests=("tests/host/test_allowed_folders.py",),
    ),
    Mistake(
        name="folder-with-same-prefix-allowed",
        file=f"{S}host/allowed_folders.py",
        old="any(real.is_relative_to(root) for root in roots)",
        new="any(str(real).startswith(str(root)) for root in roots)",
        tests=("tests/host/test_allowed_folders.py",),
    ),
    Mistake(
        name="folder-above-home-allowed",
        file=f"{S}host/allowed_folders.py",
        old="if home and home.is_relative_to(real) and (self.is_confined or not without_home):",
        new="if home and home == real and (self.is_confined or not without_home):",
        tests=("tests/host/test_allowed_folders.py",),
    ),
    Mistake(
        name="mount-with-a-variable-allowed",
        file=f"{S}domain/jobfile/confinement.py",
        old='        if "$" in source\n',
        new='        if source.startswith("$")\n',
        tests=("tests/domain/jobfile/test_confinement.py",),
    ),
    Mistake(
        name="only-first-address-checked",
        file=f"{S}egress_policy.py",
        old="for address in found:\n            if why",
        new="for address in found[:1]:\n            if why",
        tests=("tests/test_egress_policy.py",),
    ),
    Mistake(
        name="metadata-address-in-ipv6-form-allowed",
        file=f"{S}egress_policy.py",
        old="if address in METADATA or hidden in METADATA:",
        new="if address in METADATA:",
        equivalent="such an address is refused as wrapped, or by the check of the address in it",
    ),
    Mistake(
        name="setting-allows-metadata-address",
        file=f"{S}egress_policy.py",
        old="if address in METADATA or hidden in METADATA:",
        new="if hidden in METADATA:",
        tests=("tests/test_egress_policy.py",),
    ),
    Mistake(
        name="backup-with-missing-rows-restored",
        file=f"{S}store/backups.py",
        old="if sum(1 for _ in raw) != rows + 1:",
        new="if sum(1 for _ in raw) > rows + 1:",
        tests=("tests/store/test_backups.py",),
    ),
    Mistake(
        name="backup-of-another-secret-restored",
        file=f"{S}server/backup.py",
        old="== backup.manifest.secret_sha256:",
        new="!= '':",
        tests=("tests/store/test_backups.py",),
    ),
    Mistake(
        name="restore-keeps-rows-of-migrations",
        file=f"{S}store/backups.py",
        old="        connection.execute(table.delete())\n",
        new="",
        tests=("tests/store/test_backups.py",),
    ),
    Mistake(
        name="inserted-audit-rows-accepted",
        file=f"{S}store/audit_log.py",
        old="if unnumbered and result.broken_seq is None:",
        new="if unnumbered and result.broken_seq:",
        tests=("tests/store/test_audit_log.py",),
    ),
    Mistake(
        name="audit-row-without-previous-hash",
        file=f"{S}store/audit_log.py",
        old="digest(head.hash, seq, now, action)",
        new='digest("", seq, now, action)',
        tests=("tests/store/test_audit_log.py",),
    ),
    Mistake(
        name="idle-session-continues",
        file=f"{S}store/identity/sessions.py",
        old="return session if session and now < session.ends_at else None",
        new="return session",
        tests=("tests/api/test_sessions.py",),
    ),
    Mistake(
        name="expired-token-accepted",
        file=f"{S}store/identity/access_tokens.py",
        old="if self.expires_at and self.expires_at <= now:",
        new="if self.expires_at and self.expires_at < now:",
        tests=("tests/store/identity/test_access_tokens.py",),
    ),
)
