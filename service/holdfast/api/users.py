"""Users of the service; only its admins see and change them."""

from __future__ import annotations

from dataclasses import asdict

from holdfast.api.auth import TheCaller, TheDoer
from holdfast.api.legality import may
from holdfast.api.people_schemas import UserChange, UserIn, UserName, UserOut, WhoOut
from holdfast.api.routing import Router
from holdfast.api.services import The
from holdfast.errors import BadRequest
from holdfast.store.people import User

router = Router(prefix="/v1", tags=["people"])


@router.get("/whoami", response_model=WhoOut)
def show_caller(services: The, caller: TheCaller) -> WhoOut:
    """Who one is, and what one may do."""
    return WhoOut(
        user=caller.name or None,
        is_admin=caller.is_admin,
        roles={project: role.value for project, role in sorted(caller.roles.items())},
        scopes=[scope.value for scope in sorted(caller.scopes)],
        token_id=caller.token_id,
        project=caller.only,
        demo_seed=services.demo_seed,
        can=may(caller),
    )


@router.get("/users", response_model=list[UserOut])
def list_users(services: The) -> list[UserOut]:
    """Everybody, by name."""
    return [_view(user) for user in services.people.users()]


@router.post("/users", status_code=201, response_model=UserOut)
def add_user(body: UserIn, services: The, doer: TheDoer) -> UserOut:
    """Make a user, who is in no project and has no token yet."""
    if body.name == "owner":
        raise BadRequest("name: `owner` is what the owner of the service is called; write another")
    return _view(services.people.add_user(body.name, is_admin=body.is_admin, doer=doer))


@router.patch("/users/{user}", response_model=UserOut)
def change_user(user: UserName, body: UserChange, services: The, doer: TheDoer) -> UserOut:
    """Make somebody an admin or not, or keep them out or let them in again."""
    changed = services.people.change_user(
        user, is_admin=body.is_admin, is_disabled=body.is_disabled, doer=doer
    )
    return _view(changed)


def _view(user: User) -> UserOut:
    return UserOut(**asdict(user))
