"""Projects, and who is what in them."""

from __future__ import annotations

from fastapi import Response

from holdfast.api.auth import TheCaller, TheDoer
from holdfast.api.legality import may
from holdfast.api.people_schemas import (
    MemberIn,
    MemberOut,
    ProjectChange,
    ProjectIn,
    ProjectName,
    ProjectOut,
    UserName,
)
from holdfast.api.routing import Router
from holdfast.api.services import The
from holdfast.domain.rights import Caller, Role
from holdfast.store.people import Project

router = Router(prefix="/v1/projects", tags=["people"])


@router.get("", response_model=list[ProjectOut])
def list_projects(services: The, caller: TheCaller) -> list[ProjectOut]:
    """The projects that the caller is in, by name; all of them for an admin of the service."""
    return [_view(project, caller) for project in services.people.projects(caller.sees)]


@router.post("", status_code=201, response_model=ProjectOut)
def add_project(body: ProjectIn, services: The, caller: TheCaller, doer: TheDoer) -> ProjectOut:
    """Make a project, with nobody in it."""
    return _view(services.people.add_project(body.name, doer), caller)


@router.patch("/{project}", response_model=ProjectOut)
def change_project(
    project: ProjectName, body: ProjectChange, services: The, caller: TheCaller, doer: TheDoer
) -> ProjectOut:
    """Archive a project, so that it takes no new jobs, or take it back."""
    changed = services.people.archive_project(project, is_archived=body.is_archived, doer=doer)
    return _view(changed, caller)


@router.get("/{project}/members", response_model=list[MemberOut])
def list_members(project: ProjectName, services: The) -> list[MemberOut]:
    """Who is in a project, by name."""
    services.people.project(project)
    return [
        MemberOut(project=member.project, user=member.user, role=member.role.value)
        for member in services.people.members(project)
    ]


@router.put("/{project}/members/{user}", response_model=MemberOut)
def set_member(
    project: ProjectName, user: UserName, body: MemberIn, services: The, doer: TheDoer
) -> MemberOut:
    """Take a user into a project, or give them another role there."""
    services.people.set_member(project, user, Role(body.role), doer)
    return MemberOut(project=project, user=user, role=body.role)


@router.delete("/{project}/members/{user}", status_code=204, response_class=Response)
def remove_member(project: ProjectName, user: UserName, services: The, doer: TheDoer) -> Response:
    """Take a user out of a project; their jobs stay, and go on."""
    services.people.set_member(project, user, None, doer)
    return Response(status_code=204)


def _view(project: Project, caller: Caller) -> ProjectOut:
    role = caller.roles.get(project.name)
    return ProjectOut(
        name=project.name,
        created_at=project.created_at,
        archived_at=project.archived_at,
        role=role.value if role else None,
        can=may(caller, project.name),
    )
