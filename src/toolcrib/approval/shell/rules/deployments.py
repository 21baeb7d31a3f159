"""Publishing and deploying: images, releases, sites and services that others see as soon as the command has run."""

from __future__ import annotations

import re

from toolcrib.approval.shell.model import name_set
from toolcrib.approval.shell.options import parse_arguments
from toolcrib.approval.shell.rules.base import CommandCall, DangerClass, Rule, operand

DANGERS = (
    DangerClass(
        "deploy",
        "publication or deployment",
        "this project",
        r"\b(?:docker|podman)\s+push\b|\b(?:fly|netlify|firebase|wrangler|cdk|serverless|eb)\s+deploy\b",
        "docker push me/app:1.2",
    ),
)
LOOKS_ONLY = name_set(
    "--dry-run --dryrun --help -h --version -V --check -C --list --list-hosts --list-tasks --list-tags --syntax-check "
    "--build-only --validate-only --what-if --no-execute-changeset --noop --preview --plan --local --no-push"
)
DEPLOY_VERB = re.compile(
    r"(?:deploy|publish|release|promote|submit|deliver|push|gh-deploy|container:(?:release|push)"
    r"|deploy(?:[:-][\w:-]+)|[\w-]+:deploy|app:deploy|create-deployment|deploy-stack|db:push)"
)
PLATFORMS = (
    "fly flyctl netlify firebase wrangler serverless sls sst cdk cdktf sam eb copilot amplify ampx railway render "
    "doctl kamal dokku deployctl modal shopify sfdx sf cf eas surge gh-pages heroku cap mina now mkdocs ng hexo quarto "
    "cog databricks supabase convex werf"
)
"""Programs whose first word is what they do to the machines of a service."""
ALWAYS = name_set("surge gh-pages")
"""Programs that deploy without being told to."""
LOCAL_REGISTRY = re.compile(r"(?:docker://|oci://)?(?:localhost|127\.0\.0\.1|\[::1\]|host\.docker\.internal)[:/]")
VERCEL_LOOKS = name_set(
    "dev build ls list inspect logs link pull whoami login logout env help domains dns certs init projects project "
    "teams switch git bisect telemetry open alias rm remove redeploy_ rollback"
)
IMAGE_VALUES = name_set("-f --file -t --tag --build-arg --platform --target -H --host --context --config")


def looks_only(call: CommandCall) -> bool:
    return any(word.text.partition("=")[0] in LOOKS_ONLY for word in call.words)


def deploys(call: CommandCall) -> bool:
    """`fly deploy`, `firebase deploy`: the sub-command says it."""
    if looks_only(call):
        return False
    words = [each.text for each in call.arguments.operands[:3]]
    if call.program in ALWAYS:
        return bool(call.words) or call.program == "surge"
    # A group may come first: `supabase functions deploy`, `eas update`.
    return any(DEPLOY_VERB.fullmatch(word) for word in words[:2]) and words[:1] not in (["logs"], ["help"], ["config"])


def deploys_to_vercel(call: CommandCall) -> bool:
    """`vercel` alone deploys, too."""
    if looks_only(call):
        return False
    words = [each.text for each in call.arguments.operands[:1]]
    return not words or words[0] not in VERCEL_LOOKS


def pushes_image(call: CommandCall) -> bool:
    """`docker push`, `docker compose push`, `docker buildx build --push`, `helm push`; not to this machine."""
    if any(word.text in ("--dry-run", "--help", "-h") for word in call.words):
        return False
    words = [each.text for each in parse_arguments(call.words, IMAGE_VALUES).operands]
    built = any(word.text in ("--push", "--output=type=registry", "type=registry") for word in call.words)
    named = any(verb in words[:2] for verb in ("push", "cp", "copy", "sync", "mutate"))
    if call.program in ("docker", "podman", "nerdctl", "finch", "buildah", "helm"):
        named = "push" in words[:2]
    elif call.program == "skopeo":
        named = named and words[-1:] != [] and words[-1].startswith("docker://")
    images = words[1:] + [word.text for word in call.words if "/" in word.text]
    return (built or named) and not any(LOCAL_REGISTRY.match(image) for image in images)


def deploys_in_cloud(call: CommandCall) -> bool:
    """`gcloud run deploy`, `az webapp up`, `aws cloudformation deploy`."""
    words = [each.text for each in call.arguments.operands[:4]]
    return not looks_only(call) and any(word in CLOUD_VERBS for word in words[1:])


CLOUD_VERBS = name_set("deploy up create-deployment deploy-slot config-zip publish")


def runs_playbook(call: CommandCall) -> bool:
    """A playbook that changes other machines; one for this machine is a script of the project."""
    here = any(re.fullmatch(r"(?:-i|--inventory)?=?(?:localhost|127\.0\.0\.1),?", word.text) for word in call.words)
    local = any(re.fullmatch(r"(?:-c|--connection)?=?local", word.text) for word in call.words)
    return bool(call.arguments.operands) and not looks_only(call) and not (here or local)


RELEASES = name_set("release publish full-release deploy upload announce")
PLATFORM_REMOTE = re.compile(r"heroku(?:-\w+)?|dokku|scalingo|gigalixir|clever|piku|production|live|prod")


SAYS_DEPLOY = re.compile(r"(?:[\w.-]+[:/])?(?:deploy|publish)(?:[:._-][\w:.-]+)?")
DEPLOY_LOOKS = re.compile(r".*[:._-](?:dry-?run|check|test|lint|plan|diff|preview|build|local|dev|status|logs)$")


def names_deployment(call: CommandCall) -> bool:
    """`make deploy`, `npm run deploy:prod`: a task of the project whose name says it."""
    words = [each.text for each in call.arguments.operands]
    if looks_only(call) or any(word.text in ("-n", "--just-print", "-l") for word in call.words):
        return False
    if call.program in ("npm", "pnpm", "yarn", "bun", "composer", "deno"):
        words = words[1:2] if words[:1] in (["run"], ["run-script"], ["task"]) else []
    return any(SAYS_DEPLOY.fullmatch(word) and not DEPLOY_LOOKS.match(word) for word in words[:2])


RULES = (
    Rule(
        "make gmake just task rake invoke inv npm pnpm yarn bun composer deno fab",
        reason="runs a task of the project that deploys or publishes, judging by its name",
        where=names_deployment,
        yes="npm run deploy:prod",
        no="make -n deploy",
    ),
    Rule(
        "semantic-release goreleaser jreleaser",
        reason="publishes a release",
        where=lambda call: (
            call.program == "semantic-release" or any(each.text in RELEASES for each in call.arguments.operands)
        ),
        unless="--dry-run -d --snapshot --help --version --skip-publish --dryrun",
        yes="goreleaser release",
        no="goreleaser release --snapshot",
    ),
    Rule(
        "gh",
        "workflow run *",
        reason="starts a workflow that deploys or publishes, judging by its name",
        where=lambda call: bool(re.search(r"deploy|release|publish|prod", call.arguments.operands[2].text)),
        yes="gh workflow run deploy.yml",
        no="gh workflow run ci.yml",
    ),
    Rule(
        "docker podman",
        "stack|service deploy|update|rollback|scale",
        reason="changes services of a cluster",
        yes="docker stack deploy -c c.yml web",
        no="docker stack ls",
    ),
    Rule(
        "docker podman nerdctl finch buildah helm skopeo crane oras regctl",
        reason="publishes an image or a chart",
        where=pushes_image,
        yes="docker push me/app:1.2",
        no="docker push localhost:5000/app",
    ),
    Rule("vercel vc", reason="deploys the project", where=deploys_to_vercel, yes="vercel --prod", no="vercel dev"),
    Rule(PLATFORMS, reason="deploys the project", where=deploys, yes="fly deploy", no="wrangler deploy --dry-run"),
    Rule(
        "gcloud az aws",
        reason="deploys the project",
        where=deploys_in_cloud,
        yes="gcloud run deploy web --source .",
        no="gcloud run services list",
    ),
    Rule(
        "ansible-playbook ansible-pull",
        reason="changes other machines",
        where=runs_playbook,
        yes="ansible-playbook -i hosts site.yml",
        no="ansible-playbook -i hosts site.yml --check",
    ),
    Rule(
        "git",
        "push *",
        reason="deploys the project",
        where=lambda call: bool(PLATFORM_REMOTE.fullmatch(call.arguments.operands[1].text)),
        unless="-n --dry-run",
        yes="git push heroku main",
        no="git push origin main",
    ),
    Rule(
        "argocd",
        "app|appset sync|rollback|set|patch",
        reason="deploys an application",
        unless="--dry-run",
        yes="argocd app sync web",
        no="argocd app get web",
    ),
    Rule(
        "fastlane",
        reason="publishes an application",
        where=operand(lambda text: re.fullmatch(r"(?:deliver|supply|pilot|release|beta|upload_\w+|deploy)", text)),
        yes="fastlane ios beta",
        no="fastlane ios test",
    ),
)
