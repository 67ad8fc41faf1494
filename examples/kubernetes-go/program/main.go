package main

import (
	appsv1 "github.com/pulumi/pulumi-kubernetes/sdk/v4/go/kubernetes/apps/v1"
	corev1 "github.com/pulumi/pulumi-kubernetes/sdk/v4/go/kubernetes/core/v1"
	metav1 "github.com/pulumi/pulumi-kubernetes/sdk/v4/go/kubernetes/meta/v1"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi/config"
)

func main() {
	pulumi.Run(deploy)
}

func deploy(ctx *pulumi.Context) error {
	conf := config.New(ctx, "")
	labels := pulumi.StringMap{"app": pulumi.String("web")}
	// With a fixed name, `kubectl` commands are simple. Without a name, the provider generates a unique name.
	metadata := metav1.ObjectMetaArgs{Name: pulumi.String("web")}

	page, err := corev1.NewConfigMap(ctx, "page", &corev1.ConfigMapArgs{
		Metadata: metadata,
		Data:     pulumi.StringMap{"index.html": pulumi.String(conf.Require("greeting") + " from Kubernetes")},
	})
	if err != nil {
		return err
	}

	server, err := appsv1.NewDeployment(ctx, "server", &appsv1.DeploymentArgs{
		Metadata: metadata,
		Spec: appsv1.DeploymentSpecArgs{
			Replicas: pulumi.Int(conf.RequireInt("replicas")),
			Selector: metav1.LabelSelectorArgs{MatchLabels: labels},
			Template: corev1.PodTemplateSpecArgs{
				Metadata: metav1.ObjectMetaArgs{Labels: labels},
				Spec:     podSpec(conf.Require("serverImage"), page.Metadata.Name()),
			},
		},
		// The maximum time that the provider waits until the Deployment is available.
	}, pulumi.Timeouts(&pulumi.CustomTimeouts{Create: "5m", Update: "5m"}))
	if err != nil {
		return err
	}

	service, err := corev1.NewService(ctx, "service", &corev1.ServiceArgs{
		Metadata: metadata,
		Spec: corev1.ServiceSpecArgs{
			Selector: labels,
			Ports: corev1.ServicePortArray{
				corev1.ServicePortArgs{Port: pulumi.Int(80), TargetPort: pulumi.Int(8080)},
			},
		},
		// The provider waits until the Service has endpoints, so create the pods first.
	}, pulumi.DependsOn([]pulumi.Resource{server}))
	if err != nil {
		return err
	}

	ctx.Export("url", pulumi.Sprintf("http://%s.%s", service.Metadata.Name().Elem(), service.Metadata.Namespace().Elem()))
	ctx.Export("availableReplicas", server.Status.AvailableReplicas())
	return nil
}

// podSpec returns the pod of the web server, which serves the ConfigMap with this name.
func podSpec(image string, page pulumi.StringPtrOutput) corev1.PodSpecArgs {
	return corev1.PodSpecArgs{
		AutomountServiceAccountToken: pulumi.Bool(false),
		SecurityContext: corev1.PodSecurityContextArgs{
			RunAsNonRoot:   pulumi.Bool(true),
			RunAsUser:      pulumi.Int(65534),
			SeccompProfile: corev1.SeccompProfileArgs{Type: pulumi.String("RuntimeDefault")},
		},
		Containers: corev1.ContainerArray{corev1.ContainerArgs{
			Name:    pulumi.String("server"),
			Image:   pulumi.String(image),
			Command: pulumi.ToStringArray([]string{"httpd", "-f", "-p", "8080", "-h", "/www"}),
			Ports:   corev1.ContainerPortArray{corev1.ContainerPortArgs{ContainerPort: pulumi.Int(8080)}},
			ReadinessProbe: corev1.ProbeArgs{
				HttpGet: corev1.HTTPGetActionArgs{Path: pulumi.String("/index.html"), Port: pulumi.Int(8080)},
			},
			SecurityContext: corev1.SecurityContextArgs{
				AllowPrivilegeEscalation: pulumi.Bool(false),
				Capabilities:             corev1.CapabilitiesArgs{Drop: pulumi.ToStringArray([]string{"ALL"})},
			},
			VolumeMounts: corev1.VolumeMountArray{
				corev1.VolumeMountArgs{Name: pulumi.String("page"), MountPath: pulumi.String("/www")},
			},
		}},
		Volumes: corev1.VolumeArray{corev1.VolumeArgs{
			Name:      pulumi.String("page"),
			ConfigMap: corev1.ConfigMapVolumeSourceArgs{Name: page},
		}},
	}
}
