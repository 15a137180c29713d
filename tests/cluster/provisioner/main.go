// Volumes on demand: a directory and a PersistentVolume for each claim of the cluster's own StorageClass, both
// removed when the claim is gone. The nodes share this machine's disk, so a volume is the same on all of them.
//
// It looks at everything there is whenever something changed, and does what is missing: no event can be lost,
// and a restart of it or of the apiserver needs no care.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	lister "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// The name that the StorageClass gives, and that Kubernetes then writes on the claims that wait for us.
	self   = "cluster.local/hostpath"
	wanted = "volume.kubernetes.io/storage-provisioner"
	owner  = "pv.kubernetes.io/provisioned-by"
)

type provisioner struct {
	client  kubernetes.Interface
	claims  lister.PersistentVolumeClaimLister
	volumes lister.PersistentVolumeLister
	root    string
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the apiserver")
	root := flag.String("root", "", "the directory that gets one directory a volume")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	// A test may make a thousand claims at once.
	config.QPS, config.Burst, config.Timeout = 200, 400, 0
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	claims, volumes := factory.Core().V1().PersistentVolumeClaims(), factory.Core().V1().PersistentVolumes()
	changed := make(chan struct{}, 1)
	notice := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { notice() },
		UpdateFunc: func(any, any) { notice() },
		DeleteFunc: func(any) { notice() },
	}
	for _, informer := range []cache.SharedIndexInformer{claims.Informer(), volumes.Informer()} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			log.Fatal(err)
		}
	}
	p := provisioner{client: client, claims: claims.Lister(), volumes: volumes.Lister(), root: *root}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	// What failed is tried again without an event.
	again := time.NewTicker(5 * time.Second)
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-again.C:
		}
		if err := p.sync(ctx); err != nil && ctx.Err() == nil {
			log.Print(err)
		}
		// Events come in bursts: one look for all of them.
		time.Sleep(20 * time.Millisecond)
	}
}

func (p provisioner) sync(ctx context.Context) error {
	claims, err := p.claims.List(labels.Everything())
	if err != nil {
		return err
	}
	var failed []error
	for _, claim := range claims {
		switch {
		case claim.DeletionTimestamp != nil || claim.Annotations[wanted] != self:
		case claim.Spec.VolumeName == "" && claim.Status.Phase == core.ClaimPending:
			failed = append(failed, p.provision(ctx, claim))
		case claim.Status.Phase == core.ClaimBound:
			failed = append(failed, p.grow(ctx, claim))
		}
	}
	volumes, err := p.volumes.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, volume := range volumes {
		if volume.Annotations[owner] == self && volume.DeletionTimestamp == nil &&
			volume.Status.Phase == core.VolumeReleased &&
			volume.Spec.PersistentVolumeReclaimPolicy == core.PersistentVolumeReclaimDelete {
			failed = append(failed, p.remove(ctx, volume))
		}
	}
	return errors.Join(failed...)
}

// provision makes a volume that names its claim, so that Kubernetes binds the two and no others.
func (p provisioner) provision(ctx context.Context, claim *core.PersistentVolumeClaim) error {
	name := "pvc-" + string(claim.UID)
	if _, err := p.volumes.Get(name); err == nil {
		return nil // made, not bound yet
	}
	path := filepath.Join(p.root, name)
	if err := os.MkdirAll(path, 0o777); err != nil {
		return err
	}
	// A hostPath is not given to the pod's fsGroup: anyone may write. Chmod, since the umask took its part.
	if err := os.Chmod(path, 0o777); err != nil {
		return err
	}
	kind := core.HostPathDirectory
	volume := &core.PersistentVolume{
		ObjectMeta: meta.ObjectMeta{Name: name, Annotations: map[string]string{owner: self}},
		Spec: core.PersistentVolumeSpec{
			AccessModes:                   claim.Spec.AccessModes,
			Capacity:                      core.ResourceList{core.ResourceStorage: claim.Spec.Resources.Requests[core.ResourceStorage]},
			PersistentVolumeReclaimPolicy: core.PersistentVolumeReclaimDelete,
			StorageClassName:              *claim.Spec.StorageClassName,
			VolumeMode:                    claim.Spec.VolumeMode,
			PersistentVolumeSource: core.PersistentVolumeSource{
				HostPath: &core.HostPathVolumeSource{Path: path, Type: &kind},
			},
			ClaimRef: &core.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim",
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
		},
	}
	_, err := p.client.CoreV1().PersistentVolumes().Create(ctx, volume, meta.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // our cache was behind
	}
	if err == nil {
		log.Printf("made %s for %s/%s", name, claim.Namespace, claim.Name)
	}
	return err
}

// grow lets a claim have what it asks for now: a directory has no size of its own.
func (p provisioner) grow(ctx context.Context, claim *core.PersistentVolumeClaim) error {
	asked, has := claim.Spec.Resources.Requests[core.ResourceStorage], claim.Status.Capacity[core.ResourceStorage]
	if asked.Cmp(has) <= 0 {
		return nil
	}
	volume, err := p.volumes.Get(claim.Spec.VolumeName)
	if err != nil || volume.Annotations[owner] != self {
		return err
	}
	capacity := map[string]any{"capacity": map[string]any{"storage": asked.String()}}
	body, err := json.Marshal(map[string]any{"spec": capacity})
	if err != nil {
		return err
	}
	if _, err = p.client.CoreV1().PersistentVolumes().Patch(ctx, volume.Name, types.MergePatchType, body, meta.PatchOptions{}); err != nil {
		return err
	}
	if body, err = json.Marshal(map[string]any{"status": capacity}); err != nil {
		return err
	}
	_, err = p.client.CoreV1().PersistentVolumeClaims(claim.Namespace).
		Patch(ctx, claim.Name, types.MergePatchType, body, meta.PatchOptions{}, "status")
	if err == nil {
		log.Printf("grew %s for %s/%s to %s", volume.Name, claim.Namespace, claim.Name, asked.String())
	}
	return err
}

// remove takes the files first: an object without files can be asked for again, files without one are never found.
func (p provisioner) remove(ctx context.Context, volume *core.PersistentVolume) error {
	// Only below our own root, whatever the object says.
	if err := os.RemoveAll(filepath.Join(p.root, filepath.Base(volume.Spec.HostPath.Path))); err != nil {
		return err
	}
	err := p.client.CoreV1().PersistentVolumes().Delete(ctx, volume.Name, meta.DeleteOptions{
		Preconditions: &meta.Preconditions{UID: &volume.UID},
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		log.Printf("removed %s", volume.Name)
	}
	return err
}
